"""The mutations of device memory that peers copy by themselves: see mutations.py."""
from mutation import Mutation, in_file

DOOR = ("door_device",)
SHARE = ("memory_share",)
VIEW = ("protect_peer_key_view",)
ACCESSORS = ("protect_accessors",)

peer_key_view = in_file("protect/peer_key_view.cpp", DOOR)
cuda = in_file("memory/cuda.cpp", SHARE)
mappings = in_file("memory/mappings.hpp", DOOR)

DEVICE_MUTATIONS = [
    Mutation("parts of a block are not shared",
             "return base % kBlockBytes == 0 && len % kBlockBytes == 0 && len != 0;",
             "return true;", tests=SHARE, file="memory/vendors.hpp"),
    cuda("what came to the same address is not shared", "\n      facts.id != id) {", "false) {"),
    cuda("managed memory is not shared", "facts.type != cu::kDevice || facts.managed != 0 ||",
         "facts.type != cu::kDevice ||",
         reason="the driver gives out no handle of it either"),
    mappings("a share lies in what was mapped",
             "    if (offset > size || len > size - offset) return nullptr;\n",
             reason="an honest owner names nothing else, and the stand-in opens nothing of a "
                    "liar's"),
    mappings("an allocation is mapped once",
             "if (auto there = known.mapped.lock()) return there;", "continue;"),
    mappings("what nobody holds is unmapped", "  of_.unmap(*this);\n"),
    cuda("pinned memory ends where the driver says",
         "ask(bytes + n - 1, last) &&\n         last.type == cu::kHost && last.id == first.id;",
         "true;"),
    peer_key_view("a share is of the life that was met",
                  "  if (is_over(life)) return nullptr;\n", tests=VIEW),
    peer_key_view("a share is looked for once in a life",
                  "  if (const PeerDevices::Met* met = devices.find(life)) return "
                  "met->memory.get();\n",
                  "  if (const PeerDevices::Met* met = devices.find(life);\n"
                  "      met != nullptr && met->memory != nullptr) return met->memory.get();\n",
                  tests=VIEW),
    peer_key_view("what is over is let go", "  devices.drop(is_over);\n"),
    peer_key_view("a driver's copy says so",
                  "  slot.by_driver.store(1, std::memory_order_relaxed);\n"),
    peer_key_view("what a driver does not map is its owner's",
                  "  if (device == nullptr) return {Outcome::through_ring, Denial::none};\n",
                  tests=VIEW),
    peer_key_view("what was opened has an end",
                  "  if (!device->covers(offset, ask.len)) return {Outcome::denied, "
                  "Denial::out_of_range};\n",
                  tests=VIEW),
    Mutation("what was met is of one entry", " && met.life.index == life.index", tests=VIEW,
             file="protect/peer_devices.hpp"),
    Mutation("a buffer that is not pinned is copied first",
             "if (names_pinned(to, from)) {", "if (true) {", tests=DOOR,
             file="protect/peer_devices.cpp"),
    Mutation("what cannot be read is said",
             "if (!guarded_copy(own, bytes, from.iov_len)) return Copied::no_local;",
             "(void)guarded_copy(own, bytes, from.iov_len);", tests=DOOR,
             file="protect/peer_devices.cpp"),
    Mutation("what is not there yet is not sent",
             "    now.bytes = chunks_[oldest_].offset;\n", tests=DOOR,
             file="provider/staging.cpp"),
    Mutation("a chunk that a driver refused is not sent", "    now.bytes = 0;\n", tests=DOOR,
             file="provider/staging.cpp"),
    Mutation("the oldest makes room", "    oldest_ = (oldest_ + 1) % kMost;\n", tests=VIEW,
             file="protect/peer_devices.cpp"),
    Mutation("nothing is shared unasked",
             " || !setting_is(\"APERTURE_DEVICE_SHARE\", \"on\")", tests=DOOR,
             file="protect/beside.cpp"),
    Mutation("a range of an allocation has its offset",
             "  made->offset += static_cast<uint64_t>(all.base - all.device->begin());\n",
             file="protect/beside.cpp", tests=DOOR,
             reason="windows on a device are left to their owner where they are bound"),
    Mutation("a region that is more is its owner's", "  if (!is_device_alone() || ", "  if (",
             file="protect/beside.cpp", tests=DOOR,
             reason="what else a region has is bound to it later, but for what it cannot have"),
    Mutation("a region that becomes more is its owner's",
             "    entry.rights.fetch_or(kFlagAskOwner, std::memory_order_release);\n"
             "    return there;", "    return there;", file="protect/key_table.cpp", tests=DOOR),
    Mutation("who is stopped in a driver's copy is inside",
             "    if (thread.by_driver) return probe.is_over(pid, thread.start_time);\n",
             tests=ACCESSORS,
             file="protect/accessors.cpp"),
    Mutation("where nothing is shared nobody waits for drivers",
             "        drivers && threads[i]", "        threads[i]", tests=ACCESSORS,
             file="protect/accessors.cpp"),
    Mutation("a process with a thread is not over", "&& stat.threads <= 1;", ";", tests=ACCESSORS,
             file="protect/thread_probe.cpp"),
]
