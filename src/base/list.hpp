// An intrusive doubly linked list. The element derives from ListHook and is in one list at a time;
// to be in a second one as well, it derives from BasicListHook<Tag> too. Not thread-safe; never
// allocates; an element that is destroyed must have been removed.
#pragma once

#include <cassert>

namespace aperture {

template <typename Tag>
struct BasicListHook {
  BasicListHook* prev = nullptr;
  BasicListHook* next = nullptr;
  bool linked() const noexcept { return next != nullptr; }
};
using ListHook = BasicListHook<void>;

template <typename T, typename Tag = void>
class List {
  using Hook = BasicListHook<Tag>;

 public:
  List() noexcept { head_.prev = head_.next = &head_; }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  bool empty() const noexcept { return head_.next == &head_; }
  const T* front() const noexcept { return empty() ? nullptr : static_cast<const T*>(head_.next); }
  T* front() noexcept { return empty() ? nullptr : static_cast<T*>(head_.next); }
  T* back() noexcept { return empty() ? nullptr : static_cast<T*>(head_.prev); }
  const T* after(const T* at) const noexcept {
    const Hook* n = static_cast<const Hook*>(at)->next;
    return n == &head_ ? nullptr : static_cast<const T*>(n);
  }
  T* after(T* at) noexcept {
    Hook* n = static_cast<Hook*>(at)->next;
    return n == &head_ ? nullptr : static_cast<T*>(n);
  }
  void push_back(T* item) noexcept { insert_before(&head_, item); }
  void push_front(T* item) noexcept { insert_before(head_.next, item); }
  T* pop_front() noexcept {
    T* item = front();
    if (item != nullptr) remove(item);
    return item;
  }
  void remove(T* item) noexcept {
    Hook* h = item;
    assert(h->linked());
    h->prev->next = h->next;
    h->next->prev = h->prev;
    h->prev = h->next = nullptr;
  }

 private:
  static void insert_before(Hook* at, Hook* item) noexcept {
    assert(!item->linked() && at->prev != nullptr);
    item->prev = at->prev;
    item->next = at;
    at->prev->next = item;
    at->prev = item;
  }
  Hook head_;
};

}  // namespace aperture
