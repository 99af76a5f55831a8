// A memory window, an MR to bind it to and a bind that is right in all ways, of which a test
// changes one.
#pragma once

#include "protect/table_fixture.hpp"
#include "protect/window.hpp"

namespace aperture::protect {

constexpr EndpointId kQp = 21;
constexpr EndpointId kOtherQp = 22;
constexpr Rights kAtomic = Rights::remote_atomic;
constexpr Rights kWrite = Rights::remote_write;
constexpr Rights kRead = Rights::remote_read;
constexpr Rights kBindable = Rights::local_write | Rights::bind_window;
using A = WindowAnswer;

class WindowTest : public TableTest {
 protected:
  void SetUp() override {
    TableTest::SetUp();
    Result<std::unique_ptr<KeyNumbers>> made = KeyNumbers::create();
    ASSERT_TRUE(made);
    numbers = *std::move(made);
    mr = region(kBindable);
  }
  void TearDown() override {
    for (Window* w : {window.get(), second.get()}) {
      if (w == nullptr) continue;
      EXPECT_EQ(w->close(), A::done);
    }
    window.reset();
    second.reset();
    EXPECT_EQ(numbers->out(), 0u);
    EXPECT_EQ(count.bound, 0u);
    EXPECT_EQ(qp_count.bound, 0u);
  }
  std::unique_ptr<Window> make_window(WindowType type, DomainId pd = kPd) {
    Result<std::unique_ptr<Window>> made = Window::create(*table, *numbers, pd, type);
    EXPECT_TRUE(made);
    return *std::move(made);
  }
  // Another window in place of the last, which closes.
  void use(WindowType type, DomainId pd = kPd) {
    if (window != nullptr) {
      EXPECT_EQ(window->close(), A::done);
    }
    window = make_window(type, pd);
  }

  // An MR over `memory`, with these rights and peers' addresses.
  BindableRegion region(Rights rights, DomainId pd = kPd, uint64_t origin = kBase) {
    const RegionHandle entry = add(spec_with({.rights = rights, .pd = pd, .origin = origin}));
    return {entry, pd, kBase, kLength, origin, rights, &count};
  }
  // A bind that is right in all ways: the middle half of the MR, for writing.
  WindowBind good() {
    WindowBind bind;
    bind.region = &mr;
    bind.addr = mr.origin + 1024;
    bind.length = 2048;
    bind.rights = kWrite;
    bind.by_work_request = window->type() != WindowType::type_1;
    bind.key = bind.by_work_request ? next_tag(last_key()) : window->next_key();
    bind.pd = window->pd();
    bind.through = kQp;
    bind.of_endpoint = &qp_count;
    return bind;
  }
  // As ibv_inc_rkey on ibv_mw::rkey, which the consumer of type 2 keeps himself.
  uint32_t last_key() {
    if (consumer_key == 0 || number_of_key(consumer_key) != window->number()) {
      consumer_key = window->key();
    }
    return consumer_key;
  }
  uint32_t bind_now() {
    const WindowBind bind = good();
    EXPECT_EQ(window->bind(bind), A::done);
    consumer_key = bind.key;
    return bind.key;
  }
  // A bind that is wrong in one way says so, and leaves things as they are.
  void expect_refused(const WindowBind& bind, A why) {
    const bool was = window->is_bound();
    const uint32_t bound = count.bound;
    const uint32_t regions = table->entries().regions();
    EXPECT_EQ(window->bind(bind), why) << sentence(why);
    EXPECT_EQ(window->is_bound(), was);
    EXPECT_EQ(count.bound, bound);
    EXPECT_EQ(table->entries().regions(), regions);
  }
  Denial reach(uint32_t key, EndpointId through = kQp, uint64_t addr = kBase + 1024,
               uint64_t len = 2048, Rights need = kWrite, DomainId pd = kPd) const {
    return denial(ask_with(
        {.key = key, .addr = addr, .len = len, .need = need, .pd = pd, .through = through}));
  }
  uint64_t generation_of_key(uint32_t key) const {
    return granted(ask_with({.key = key, .addr = kBase + 1024, .through = kQp})).generation;
  }

  std::unique_ptr<KeyNumbers> numbers;
  std::unique_ptr<Window> window;
  std::unique_ptr<Window> second;
  BindableRegion mr;
  WindowCount count;
  WindowCount qp_count;
  uint32_t consumer_key = 0;
};

// Each test for each type of window, of which one is there.
class WindowOfType : public WindowTest, public testing::WithParamInterface<WindowType> {
 protected:
  void SetUp() override {
    WindowTest::SetUp();
    use(GetParam());
  }
};

constexpr WindowType kTypes[] = {WindowType::type_1, WindowType::type_2a, WindowType::type_2b};
constexpr WindowType kType2[] = {WindowType::type_2a, WindowType::type_2b};

}  // namespace aperture::protect
