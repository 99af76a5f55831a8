// Who this process is, as it says so at first contact. Read once; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "base/errc.hpp"
#include "wire/hello.hpp"

namespace aperture::nic {

class MeetingDirectory;

// What APERTURE_CMA asks for.
enum class DirectWish : uint8_t {
  if_possible,  // unset: one-sided copies where the kernel allows them
  deny,         // "deny": never, in neither direction
  allow,        // "allow": also let every process of this user copy (PR_SET_PTRACER_ANY)
};

struct Identity {
  wire::Id128 boot_id{};
  wire::Id128 incarnation{};  // 128 random bits, drawn by this process
  uint64_t net_ns = 0;        // inodes of the namespaces
  uint64_t pid_ns = 0;
  uint64_t time_ns = 0;  // 0: a kernel without
  uint64_t user_ns = 0;
  pid_t pid = 0;
  uid_t uid = 0;
  bool uid_is_ours = true;  // no unmapped user can seem to be this one
  uint64_t start_time = 0;  // field 22 of /proc/self/stat
  bool heavy_barriers = false;
  DirectWish direct = DirectWish::if_possible;
  bool streams_only = false;  // APERTURE_LINK=tcp: no memory is shared with anybody
  // Where processes of other network namespaces are met; null: nowhere. read() leaves it so.
  std::shared_ptr<MeetingDirectory> meeting;

  // Errors: io (/proc does not say who we are).
  static Result<Identity> read() noexcept;
  // What same_user() needs, and no more: as whom this process runs now.
  static Identity read_user() noexcept;

  // Whether the process, whose ids a socket told, runs as the same user.
  bool same_user(pid_t there, uid_t its_uid) const noexcept;
  // Whether that number may stand for more users than one, since not everybody has one here.
  static bool may_be_anybody(uid_t its_uid) noexcept;
  // Whether that process calls itself by the incarnation of this one, and is another.
  bool is_passed_for(const wire::Id128& its_incarnation, pid_t its_pid) const noexcept {
    return its_incarnation == incarnation && its_pid != pid;
  }
  // Shared memory reaches there: the same kernel and the same abstract socket names.
  bool same_host(const wire::Id128& boot, uint64_t net) const noexcept {
    return !streams_only && boot == boot_id && net == net_ns;
  }
  // It would, from a network namespace of its own.
  bool same_kernel(const wire::Id128& boot, uint64_t net) const noexcept {
    return !streams_only && boot == boot_id && net != net_ns;
  }
};

// Which boot of which kernel. Errors: io.
Result<wire::Id128> read_boot_id() noexcept;
// Which network namespace; 0: /proc does not say.
uint64_t read_net_ns() noexcept;

}  // namespace aperture::nic
