// What the verbs door's two probes found, kept in the user's own folder, so that not each program
// waits for two processes before it starts.
//
// It is believed where all of this is as it was: the command, both libraries and what the real one
// needs, what ld.so(8) reads (its cache, its preloads), the root folder, and the limits that a
// process starts under. A file is the same by device, inode, size and the times of its changes.
// Only a door that opened is kept; where a variable tells ld.so what to do (LD_LIBRARY_PATH, ...),
// nothing is kept or believed, since folders that it names may have changed.
//
// The folder is the user's, and nobody else writes it (base/runtime_folder.hpp); a file in it that
// is not the user's alone is not believed either. It can do no
// more than the links beside it. One thread.
#pragma once

#include <string>

namespace aperture::tool {

class KeptAnswer {
 public:
  // folder: the runtime folder; library: our libibverbs.so.1. Sees everything as it is now, so that
  // what changes while it is asked about is not taken for what was asked.
  KeptAnswer(const std::string& folder, const std::string& library);

  // The files that were found, the real libibverbs first, each with a line's end; empty: they have
  // to be asked for.
  std::string files() const;
  // What keep() takes once the door has opened with those files: seen before it is tried.
  std::string written_of(const std::string& files) const;
  void keep(const std::string& written) const;
  // The door did not open.
  void forget() const;

 private:
  std::string file_;        // empty: nothing is kept
  std::string conditions_;  // all but those files; what is kept begins with it
};

}  // namespace aperture::tool
