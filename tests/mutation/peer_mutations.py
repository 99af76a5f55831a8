"""The mutations of what other processes may ask for, and make us do: see mutations.py."""
from mutation import Mutation

MET = ("nic_met_port",)  # processes that ask without a ticket
CODE = ("protect_code_place",)

PEER_MUTATIONS = [
    Mutation("another user needs a ticket",
             "  if (!peer.may_ask_at_once()) return {.why = wire::Why::bad_ticket};\n", tests=MET,
             file="nic/accepting_side.cpp"),
    Mutation("a nonce is of a ticket",
             "  if (open.nonce != wire::Id128{}) return {.why = wire::Why::bad_ticket};\n",
             tests=MET, file="nic/accepting_side.cpp"),
    Mutation("the two kinds of ends never meet",
             "  if (!same_kind) return {.why = wire::Why::no_endpoint};\n", tests=MET,
             file="nic/accepting_side.cpp"),
    Mutation("without a ticket an end has an address of its own",
             "destination.is_any_ip() || !is_at(destination)", "!is_at(destination)", tests=MET,
             file="nic/doorway.cpp"),
    Mutation("of two that ask at once one is answered",
             "if (crosses && !is_first(open.source, peer.incarnation(), open.destination)) {",
             "if (crosses) {", tests=MET, file="nic/accepting_side.cpp"),
    Mutation("who has a key asks by TCP",
             "listener->end.auth_key == nullptr && !local.is_any_ip()", "!local.is_any_ip()",
             tests=MET, file="nic/connecting_side.cpp"),
    Mutation("a program is searched once for all its processes",
             "if (known != by_file_.end()) return", "if (false) return", tests=CODE,
             file="protect/code_place.cpp"),
    Mutation("looking into others has a bound",
             "if (is_other && allowance_.is_used_up())", "if (false)", tests=CODE,
             file="protect/code_place.cpp"),
    Mutation("looking into ourselves has none",
             "if (is_other && allowance_.is_used_up())", "if (allowance_.is_used_up())", tests=CODE,
             file="protect/code_place.cpp"),
]
