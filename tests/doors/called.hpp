// Objects whose methods are called here or in a child, so that a test is written once and runs
// either way. What a method takes and gives back travels as bytes over the child's control socket;
// what it throws is thrown where it was called, as a DoorError.
//
// The child is the same program (child.hpp). A method is named by the distance between two
// functions, since the program may lie elsewhere in the other process. One thread calls an object.
#pragma once

#include <tuple>
#include <type_traits>

#include "doors/child.hpp"
#include "doors/fixture.hpp"

namespace aperture::doors {

// What was asked or answered.
class Message {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (sizeof value > sizeof bytes_ - at_) throw std::length_error("too long for a Message");
    std::memcpy(bytes_ + at_, &value, sizeof value);
    at_ += sizeof value;
  }
  // In the order in which they were put.
  template <typename T>
  T take() {
    T value;
    std::memcpy(static_cast<void*>(&value), bytes_ + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  void rewind() { at_ = 0; }

  int64_t what = 0;  // asked: which method; answered: 0, or the negative code of a DoorError

 private:
  size_t at_ = 0;
  uint8_t bytes_[1000] = {};
};

// Takes the arguments from a question, calls the method of `object`, and puts what it returns.
using Runner = void (*)(void* object, Message& question, Message& answer);

template <auto Method>
struct Call;
template <typename Object, typename Result, typename... Params, Result (Object::*Method)(Params...)>
struct Call<Method> {
  static void run(void* object, Message& question, Message& answer) {
    // in braces: from left to right
    std::tuple<std::decay_t<Params>...> args{question.take<std::decay_t<Params>>()...};
    const auto invoke = [&](auto&... each) {
      return (static_cast<Object*>(object)->*Method)(each...);
    };
    if constexpr (std::is_void_v<Result>) {
      std::apply(invoke, args);
    } else {
      answer.put(std::apply(invoke, args));
    }
  }
  static void put(Message& question, const std::decay_t<Params>&... args) {
    (question.put(args), ...);
  }
  static Result take(Message& answer) {
    if constexpr (!std::is_void_v<Result>) return answer.take<Result>();
  }
};

void ask_child(Control& control, Runner method, Message question);
// The answer; throws what the method threw.
Message answer_of_child(Control& control, int timeout_ms = 30000);
// The child's half: calls what is asked until the other end goes, and polls meanwhile as long as
// that is wished for.
int serve_calls(Control& control, void* object, const std::function<bool()>& polls);

template <typename Object>
class Called {
 public:
  explicit Called(std::unique_ptr<Object> here) : here_(std::move(here)) {}
  // In a child, whose role serves the calls.
  Called(const char* role, const ChildOptions& options)
      : child_(std::make_unique<Child>(role, options)) {}
  virtual ~Called() = default;

  template <auto Method, typename... Args>
  auto call(const Args&... args) {
    if (here_ != nullptr) return (here_.get()->*Method)(args...);
    begin<Method>(args...);
    Message answer = answer_of_child(child_->control());
    return Call<Method>::take(answer);
  }
  // Without waiting for the end, which finish() does: several children at work at once.
  template <auto Method, typename... Args>
  void begin(const Args&... args) {
    Message question;
    Call<Method>::put(question, args...);
    ask_child(child_->control(), Call<Method>::run, question);
  }
  void finish() { answer_of_child(child_->control(), 60000); }

 protected:
  Object* here() { return here_.get(); }

 private:
  std::unique_ptr<Object> here_;
  std::unique_ptr<Child> child_;
};

}  // namespace aperture::doors
