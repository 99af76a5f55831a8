# The cases that cannot pass under qemu-user, and why. Nothing else is left out but the tests of the
# rooms nic and cm (tests/CMakeLists.txt) and protect_exec (tests/protect/CMakeLists.txt).
set(left_out
  # madvise(2): MADV_WIPEONFORK, MADV_DONTFORK and MADV_DONTDUMP are taken and do nothing
  Mapping.moves_and_is_absent_in_a_forked_child
  Secret.does_not_go_into_a_core_dump
  Random.forked_child_does_not_repeat_its_parent_or_its_siblings
  ProcessEpoch.is_constant_here_and_another_in_a_child
  PerProcess.a_forked_child_has_another_one_and_so_has_its_child
  ProcessLock.is_free_in_a_forked_child_whoever_holds_it_in_the_parent
  FoundOnce.a_child_that_was_forked_in_the_middle_finds_it_by_itself
  Kinds/Drivers.a_forked_child_is_refused/*
  KeyNumbers.hostile_2_a_hundred_restarts_share_no_sequence
  Keys.hostile_2_and_3_restarted_and_forked_processes_share_no_key
  # mremap(2): a length of 0, which makes a second mapping, is refused
  GiveBack.*
  # setsockopt(2): multicast groups are refused
  *UdGroup.*
  UdGroups.that_share_an_address_stay_apart
  # process_vm_writev is not one system call here (process_vm.cpp): a thread can be stopped after it
  # read the length that its owner zeroes, and before it copies
  Processes.nothing_lands_after_revoke_whether_the_accessor_runs_stops_or_dies
  # nor does it mind memory without access
  Kinds/Drivers.a_stand_in_keeps_the_cpu_out_of_device_memory/*
  # nor does it say which side of a copy has faulted
  *Faults.of_a_direct_copy*
  # libdw, which names lines of source, is not there for the emulated machine
  Explain.out_of_range_names_attempt_key_region_distance_and_fix
  CodePlace.is_searched_once_for_all_processes_of_a_program
  CodePlaces.of_another_process_that_names_one_after_the_other_become_numbers)
list(JOIN left_out ":" left_out)
list(APPEND APERTURE_TEST_ENV GTEST_FILTER=-${left_out})
