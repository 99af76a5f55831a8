// What moves the lanes of a link: of those links whose lanes do not move by themselves.
//
// Shared memory needs none of this: what is published is where the other side looks. A link over
// sockets moves the contents of all its lanes at once, so that a poll costs one look at the link
// and not one at each lane. It is registered with the engine (nic/engine.hpp), which calls it in
// each of its polls. All calls are made with the engine's lock held.
#pragma once

namespace aperture::link {

class Progress {
 public:
  Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  virtual ~Progress() = default;

  // Moves what there is to be moved between the link and its lanes, without waiting. True if
  // anything moved.
  virtual bool progress() noexcept = 0;
  // At the end of a poll, and before the engine sleeps: hands on what was published meanwhile and
  // can go now. hurry: all of it, also what may wait for company until the next poll.
  virtual void flush(bool /*hurry*/) noexcept {}
  // Something was published that only a poll hands on: an engine may not sleep on it.
  virtual bool needs_polling() const noexcept { return false; }
  // A descriptor that is readable while progress() has something to do: it wakes a sleeping engine.
  // The same one from registration on. -1: there is none, and only polls move this link.
  virtual int fd() const noexcept { return -1; }
};

}  // namespace aperture::link
