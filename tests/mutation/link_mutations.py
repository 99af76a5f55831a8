"""Mutations of what reads what other hosts send, src/link/tcp/ above all: see mutations.py."""
from mutation import in_file

HOSTILE = ("link_stream_hostile", "link_stream_simulation")
STREAM = ("link_stream", "link_stream_simulation")

incoming = in_file("link/tcp/incoming.cpp", tests=HOSTILE)
outgoing = in_file("link/tcp/outgoing.cpp", tests=HOSTILE)
lane = in_file("link/tcp/stream_lane.cpp", tests=STREAM + HOSTILE)
mover = in_file("link/tcp/mover.cpp", tests=STREAM + HOSTILE)
frame = in_file("wire/frame.cpp", tests=("wire_frame", *HOSTILE))
stream_peer = in_file("nic/stream_peer.cpp",
                      tests=("nic_stream_contact", "nic_stream_contact_checksums", "hosts_faults"))

LINK_MUTATIONS = [
    # --- what a stranger says ---
    incoming("cells need room",
             "  if (!head.value().count.bounded(static_cast<uint16_t>(free), count)) {\n"
             "    return \"more messages than there is room for\";\n  }\n",
             "  (void)head.value().count.bounded(static_cast<uint16_t>(free), count);\n"),
    incoming("the record of a piece needs room",
             "  if (!filled.room(1)) return \"more messages than there is room for\";\n"),
    incoming("bytes follow the last ones",
             "  if (position != end && position != next_lap) return \"bytes that do "
             "not follow the last "
             "ones\";\n"),
    incoming("bytes end in their ring",
             "static_cast<uint32_t>(size - position % size), length)", "~uint32_t{0} / 2, length)"),
    incoming("bytes wait until what lies there was read",
             "  if (position + length > filled.bytes.granted()) return \"bytes over "
             "some that were not "
             "read yet\";\n"),
    incoming("no more is acknowledged than was sent",
             "credit.value().consumed.bounded(drained.cells.pos(), consumed)",
             "credit.value().consumed.bounded(~uint64_t{0}, consumed)"),
    incoming("no more is freed than was sent",
             "credit.value().bytes_consumed.bounded(ends_.drained_bytes[channel], bytes_consumed)",
             "credit.value().bytes_consumed.bounded(~uint64_t{0}, bytes_consumed)"),
    incoming("no less is acknowledged than before",
             "  if (consumed < words.consumed.load(std::memory_order_relaxed) ||\n  "
             "    bytes_consumed",
             "  if (bytes_consumed"),
    incoming("nothing comes after a close",
             "  if (closed_) return here() != 0 ? \"more after it had said that "
             "this was all\" : nullptr;\n",
             "  if (closed_) return nullptr;\n"),
    incoming("a piece has no trailer, so none comes where trailers are",
             "  if (is_piece && trailer_.is_there()) return \"a frame that has no tag or "
             "checksum\";\n"),
    incoming("the trailer of cells and credits",
             "    return wrong_trailer();\n  }\n  begin_ +=", "  }\n  begin_ +="),
    incoming("the trailer of payload",
             "    if (!has_right_trailer(payload_header_, payload_, waiting().data())) "
             "return wrong_trailer();\n"),
    frame("a checksum is of all of it", "crc32c(rest, crc32c(header, crc32c(first)))",
          "crc32c(header, crc32c(first))"),
    frame("a checksum is of that place", "crc32c(rest, crc32c(header, crc32c(first)))",
          "crc32c(rest, crc32c(header))"),
    stream_peer("checksums that one side wants are promised by the other",
                " ||\n      (asked_->checksums && !accept.checksums)) {", ") {"),
    stream_peer("who asks for checksums gets them", "open.checksums || wants_checksums();",
                "wants_checksums();"),
    stream_peer("who did not ask for them has them if the other side wants them",
                "  asked.checksums = accept.checksums;\n"),
    # --- pieces ---
    incoming("a record waits for its payload",
             "  if (is_piece_ && !is_landing_) ends_", "  if (false) ends_"),
    incoming("a record that landed is published once",
             "  if (is_piece_ && !is_landing_) ends_", "  if (is_piece_) ends_"),
    incoming("what came with the header is the first of the payload",
             "  begin_ = end_ = 0;\n  return {buffer_", "  return {buffer_"),
    lane("a piece lands if all of it is there",
         "  if (!moved_.is || stream_->waiting() < in_.missing_of_piece()) return false;\n",
         "  if (!moved_.is) return false;\n"),
    lane("what the socket does not take is copied before the call is over",
         "  if (!down_ && !out_.copy_payload_left()) {", "  if (false) {"),
    lane("what was published before goes before",
         " || out_.has_published(*this))) {", ")) {"),
    lane("what does not stay is sent at once",
         "  if (run_ != Run::none && stays) return Carried::yes;",
         "  if (run_ != Run::none) return Carried::yes;",
         reason="in these tests all of it stays; door_rma_tcp reads regions that are closed"),
    mover("what nobody lets land is in its ring after the poll", "  stage_all();\n"),
    outgoing("what was copied is sent from there", "    left.iov_base = to;\n"),
    outgoing("a piece is told of once", "  ends_.drained[at(channel)].cells.advance(1);\n"),
    # --- the end ---
    mover("what came over others is read before the end of one",
          "  if (one_ended_) receive_before_end();\n"),
    lane("a close, or the peer is lost",
         "got.error() == Errc::shut_down && !in_.was_closed() ? Errc::peer_lost : got.error()",
         "got.error()"),
    lane("what came before the end is read", "    if (!receive()) break;\n", "    break;\n"),
]
