// The folder of a user's own for what outlives a process: the verbs door's links, and the paths of
// its device. No state, any thread.
#pragma once

#include <string>

namespace aperture {

// "$XDG_RUNTIME_DIR/aperture-UID", or in $TMPDIR, or in /tmp: made if it is not there, and the same
// for every process of the user, who alone can write it. In a user namespace UID is the number that
// the user has outside; where that one's folder is not the user's, the namespace's number follows.
// Empty, with a sentence: there is none.
std::string runtime_folder(std::string& why_not);

}  // namespace aperture
