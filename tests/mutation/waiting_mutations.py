"""The mutations of who is woken, and by what: see mutations.py."""
from mutation import in_file

channel = in_file("verbs/channel.cpp", tests=("verbs_waiting",))
waiters = in_file("verbs/waiters.cpp", tests=("verbs_waiters", "verbs_waiting"))

WAITING_MUTATIONS = [
    channel("of a thread's channels one is woken",
            "    if (who->direct != nullptr) who->direct->set_direct(false);\n"),
    channel("the channel that is waited for is woken",
            "  if (armed != nullptr && !stays) wake_by_this(who);\n",
            reason="the control thread raises its events, a tick later"),
    channel("a channel that is destroyed wakes nobody",
            "  if (!direct) context->waiters.forget(*this);\n",
            reason="what lies where it was is seldom anything else; ASan sees it"),
    waiters("who comes back for nothing is not believed again",
            "has_fetched_.exchange(false, std::memory_order_relaxed)", "true"),
    waiters("what is left from before a wait is not counted",
            "number_of(seen) == number && static_cast", "static_cast"),
    waiters("one that is fetched is not counted twice",
            " && static_cast<uint32_t>(seen) != 0 &&\n", " &&\n"),
]
