// Copies of fi_info structures: see info_copy.hpp.
#include "provider/info_copy.hpp"

namespace aperture::provider {

namespace {

template <typename T>
T* copy_part(const T* part) {
  T* made = new_part<T>();
  if (part != nullptr) *made = *part;
  return made;
}

char* copy_text(const char* text) {
  return text != nullptr ? new_text(text) : nullptr;
}

}  // namespace

InfoPtr copy_info(const fi_info& info) {
  InfoPtr made(new_part<fi_info>());
  made->caps = info.caps;
  made->mode = info.mode;
  made->addr_format = info.addr_format;
  made->tx_attr = copy_part(info.tx_attr);
  made->rx_attr = copy_part(info.rx_attr);
  made->ep_attr = copy_part(info.ep_attr);
  made->ep_attr->auth_key = nullptr;
  made->ep_attr->auth_key_size = 0;
  // pointers are set only once what they point to is our own: the parts are freed one by one
  made->domain_attr = copy_part(info.domain_attr);
  made->domain_attr->name = nullptr;
  made->domain_attr->auth_key = nullptr;
  made->domain_attr->auth_key_size = 0;
  made->fabric_attr = copy_part(info.fabric_attr);
  made->fabric_attr->name = made->fabric_attr->prov_name = nullptr;
  if (info.domain_attr != nullptr) made->domain_attr->name = copy_text(info.domain_attr->name);
  if (info.fabric_attr != nullptr) {
    made->fabric_attr->name = copy_text(info.fabric_attr->name);
    made->fabric_attr->prov_name = copy_text(info.fabric_attr->prov_name);
  }
  return made;
}

}  // namespace aperture::provider
