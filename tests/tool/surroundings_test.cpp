// Which settings `aperture run` makes, keeps, and remarks on.
#include "tool/surroundings.hpp"

#include <gtest/gtest.h>

#include <map>

namespace aperture::tool {
namespace {

using Settings = std::map<std::string, std::string>;

const Place kPlace{"/opt/ap/lib", "/usr/lib/libfabric", false};

Surroundings plan_with(const Settings& present, bool Place::*wish = nullptr) {
  Place place = kPlace;
  if (wish != nullptr) place.*wish = true;
  return plan(place, [&](const char* name) -> const char* {
    const auto found = present.find(name);
    return found == present.end() ? nullptr : found->second.c_str();
  });
}

Settings made(const Surroundings& surroundings) {
  return {surroundings.settings.begin(), surroundings.settings.end()};
}

TEST(Surroundings, nothing_set_gets_everything_that_leads_to_aperture) {
  const Surroundings s = plan_with({});
  const Settings expected = {{"FI_PROVIDER_PATH", "/opt/ap/lib:/usr/lib/libfabric"},
                             {"FI_PROVIDER", "aperture"},
                             {"OMPI_MCA_pml", "cm"},
                             {"OMPI_MCA_mtl", "ofi"},
                             {"OMPI_MCA_mtl_ofi_provider_include", "aperture"},
                             {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                             {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                             {"APERTURE_CHOSEN",
                              "FI_PROVIDER,OMPI_MCA_pml,OMPI_MCA_mtl,"
                              "OMPI_MCA_mtl_ofi_provider_include"}};
  EXPECT_EQ(made(s), expected);
  EXPECT_TRUE(s.notes.empty());
}

TEST(Surroundings, root_also_gets_open_mpi_leave_to_run) {
  EXPECT_EQ(made(plan_with({})).count("OMPI_ALLOW_RUN_AS_ROOT"), 0u);
  const Settings settings = made(plan_with({}, &Place::root));
  EXPECT_EQ(settings.at("OMPI_ALLOW_RUN_AS_ROOT"), "1");
  EXPECT_EQ(settings.at("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1");
}

TEST(Surroundings, a_provider_path_of_the_user_stays_behind_ours) {
  const auto path = [](const char* theirs) {
    return made(plan_with({{"FI_PROVIDER_PATH", theirs}})).at("FI_PROVIDER_PATH");
  };
  EXPECT_EQ(path("/mine"), "/opt/ap/lib:/mine");
  EXPECT_EQ(path("@/mine:/more"), "@/opt/ap/lib:/mine:/more");
  EXPECT_EQ(path("/mine:/opt/ap/lib"), "/mine:/opt/ap/lib");
  EXPECT_EQ(path(""), "/opt/ap/lib:/usr/lib/libfabric");
  EXPECT_EQ(path("@"), "@/opt/ap/lib");
}

TEST(Surroundings, a_choice_of_the_user_is_kept_and_remarked_on_if_it_stops_aperture) {
  const Surroundings s = plan_with({{"OMPI_MCA_pml", "ob1"}});
  EXPECT_EQ(made(s).count("OMPI_MCA_pml"), 0u);
  ASSERT_EQ(s.notes.size(), 1u);
  EXPECT_NE(s.notes[0].find("OMPI_MCA_pml=ob1"), std::string::npos);
}

TEST(Surroundings, a_choice_of_the_user_that_leaves_aperture_in_is_no_matter) {
  EXPECT_TRUE(plan_with({{"FI_PROVIDER", "tcp,aperture"}}).notes.empty());
  EXPECT_TRUE(plan_with({{"FI_PROVIDER", "^tcp"}}).notes.empty());
  EXPECT_TRUE(plan_with({{"OMPI_MCA_pml", "^ucx"}}).notes.empty());
}

TEST(Surroundings, exclusions_of_aperture_are_remarked_on) {
  EXPECT_EQ(plan_with({{"FI_PROVIDER", "^aperture"}}).notes.size(), 1u);
  EXPECT_EQ(plan_with({{"OMPI_MCA_mtl_ofi_provider_exclude", "shm,aperture"}}).notes.size(), 1u);
  EXPECT_TRUE(plan_with({{"OMPI_MCA_mtl_ofi_provider_exclude", "shm"}}).notes.empty());
}

TEST(Surroundings, one_sided_leads_mpi_windows_and_messages_to_btl_ofi) {
  const auto plan_one_sided = [](const Settings& present) {
    return plan_with(present, &Place::one_sided);
  };
  const Settings settings = made(plan_one_sided({}));
  EXPECT_EQ(settings.at("OMPI_MCA_pml"), "ob1");
  EXPECT_EQ(settings.at("OMPI_MCA_osc"), "rdma");
  EXPECT_EQ(settings.at("OMPI_MCA_btl"), "self,ofi");
  EXPECT_EQ(settings.at("OMPI_MCA_btl_ofi_mode"), "2");
  EXPECT_EQ(settings.at("OMPI_MCA_btl_ofi_provider_include"), "aperture");
  EXPECT_EQ(settings.at("OMPI_MCA_osc_rdma_acc_use_amo"), "0");
  EXPECT_EQ(settings.count("OMPI_MCA_mtl"), 0u);

  EXPECT_TRUE(plan_one_sided({{"OMPI_MCA_osc_rdma_acc_use_amo", "1"}}).notes.empty());
  EXPECT_TRUE(plan_one_sided({{"OMPI_MCA_btl", "ofi,self"}}).notes.empty());
  const Surroundings other = plan_one_sided({{"OMPI_MCA_btl", "self,vader"}});
  EXPECT_EQ(made(other).count("OMPI_MCA_btl"), 0u);
  ASSERT_EQ(other.notes.size(), 1u);
  EXPECT_NE(other.notes[0].find("set it to self,ofi"), std::string::npos);
  EXPECT_EQ(plan_one_sided({{"OMPI_MCA_pml", "cm"}}).notes.size(), 1u);
}

Surroundings plan_as(const char* name, const Settings& present) {
  Place place = kPlace;
  place.as = name;
  return plan(place, [&](const char* variable) -> const char* {
    const auto found = present.find(variable);
    return found == present.end() ? nullptr : found->second.c_str();
  });
}

TEST(Surroundings, another_name_has_libfabric_find_the_provider_twice_and_let_it_through) {
  const Settings settings = made(plan_as("tcp", {}));
  EXPECT_EQ(settings.at("APERTURE_AS"), "tcp");
  EXPECT_EQ(settings.at("FI_PROVIDER"), "aperture,tcp");
  EXPECT_EQ(settings.at("FI_PROVIDER_PATH"), "/opt/ap/lib:/opt/ap/lib:/usr/lib/libfabric");
  EXPECT_EQ(made(plan_with({})).count("APERTURE_AS"), 0u);

  const auto path = [](const char* theirs) {
    return made(plan_as("tcp", {{"FI_PROVIDER_PATH", theirs}})).at("FI_PROVIDER_PATH");
  };
  EXPECT_EQ(path("/mine:/opt/ap/lib"), "/opt/ap/lib:/mine:/opt/ap/lib");
  EXPECT_EQ(path("/opt/ap/lib:/opt/ap/lib:/mine"), "/opt/ap/lib:/opt/ap/lib:/mine");
  EXPECT_EQ(path("@"), "@/opt/ap/lib:/opt/ap/lib");
}

// The environment that a run makes of one.
Settings run_in(Settings environment, const char* as, bool one_sided) {
  Place place = kPlace;
  place.as = as;
  place.one_sided = one_sided;
  if (environment.count(kChosenVariable) != 0) place.chosen = environment[kChosenVariable];
  const Surroundings s = plan(place, [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
  EXPECT_TRUE(s.notes.empty()) << s.notes[0];
  for (const std::string& name : s.unset) environment.erase(name);
  for (const auto& [name, value] : s.settings) environment[name] = value;
  return environment;
}

TEST(Surroundings, a_run_within_a_run_is_as_if_it_were_alone) {
  for (const bool outer_one_sided : {false, true}) {
    for (const bool inner_one_sided : {false, true}) {
      for (const char* outer_as : {"", "tcp"}) {
        for (const char* inner_as : {"", "tcp", "verbs;ofi_rxm"}) {
          Settings within =
              run_in(run_in({}, outer_as, outer_one_sided), inner_as, inner_one_sided);
          const std::string as = *inner_as != '\0' ? inner_as : outer_as;
          Settings alone = run_in({}, as.c_str(), inner_one_sided);
          within.erase("FI_PROVIDER_PATH");  // the folder may stand there once more
          alone.erase("FI_PROVIDER_PATH");
          EXPECT_EQ(within, alone);
        }
      }
    }
  }
}

TEST(Surroundings, what_the_user_has_set_is_kept_by_a_run_within_a_run) {
  // before the outer one, and within it
  Settings settings = run_in({{"OMPI_MCA_pml", "^ucx"}}, "", false);
  EXPECT_EQ(settings.at("APERTURE_CHOSEN"),
            "FI_PROVIDER,OMPI_MCA_mtl,OMPI_MCA_mtl_ofi_provider_include");
  settings["FI_PROVIDER"] = "tcp,aperture";
  settings = run_in(settings, "", true);
  EXPECT_EQ(settings.at("OMPI_MCA_pml"), "^ucx");
  EXPECT_EQ(settings.at("FI_PROVIDER"), "tcp,aperture");
  EXPECT_EQ(settings.count("OMPI_MCA_mtl"), 0u);
  // another name by hand, after one of the outer run's
  settings = run_in({}, "tcp", false);
  settings["APERTURE_AS"] = "sockets";
  settings = run_in(settings, "", false);
  EXPECT_EQ(settings.at("APERTURE_AS"), "sockets");
}

TEST(Surroundings, a_run_that_chooses_nothing_says_so) {
  Settings users = run_in({}, "", false);
  users.erase("APERTURE_CHOSEN");
  const Settings none = run_in(users, "", false);
  EXPECT_EQ(none, users);
  users["APERTURE_CHOSEN"] = "OMPI_MCA_osc,PATH,no_such_variable";
  users["OMPI_MCA_osc"] = "^rdma";
  const Settings cleared = run_in(users, "", false);
  users.erase("APERTURE_CHOSEN");
  EXPECT_EQ(cleared, users);
}

TEST(Surroundings, a_provider_list_of_the_user_that_leaves_the_other_name_out_is_remarked_on) {
  EXPECT_TRUE(plan_as("tcp", {{"FI_PROVIDER", "aperture,tcp"}}).notes.empty());
  const Surroundings s = plan_as("verbs;ofi_rxm", {{"FI_PROVIDER", "aperture,tcp"}});
  EXPECT_EQ(made(s).count("FI_PROVIDER"), 0u);
  ASSERT_EQ(s.notes.size(), 1u);
  EXPECT_NE(s.notes[0].find("leaves out verbs;ofi_rxm"), std::string::npos);
}

TEST(Surroundings, a_provider_list_that_leads_to_the_device_is_told_from_one_that_leads_nowhere) {
  const auto note = [](const char* list, const char* library) {
    Place place = kPlace;
    place.verbs_library = library;
    return plan(place,
                [&](const char* name) {
                  return name == std::string("FI_PROVIDER") ? list : nullptr;
                })
        .notes.at(0);
  };
  const char* ours = "/opt/ap/lib/libibverbs.so.1";
  EXPECT_NE(note("verbs;ofi_rxm", ours).find("goes over aperture0"), std::string::npos);
  EXPECT_NE(note("tcp,verbs", ours).find("goes over aperture0"), std::string::npos);
  EXPECT_NE(note("verbs", "").find("will not choose Aperture"), std::string::npos);
  EXPECT_NE(note("tcp", ours).find("will not choose Aperture"), std::string::npos);
  EXPECT_NE(note("^aperture,verbs", ours).find("will not choose Aperture"), std::string::npos);
}

Surroundings explain_with(const Settings& present) {
  return plan_with(present, &Place::explain);
}

TEST(Surroundings, explain_makes_the_provider_speak) {
  const Settings settings = made(explain_with({}));
  EXPECT_EQ(settings.at("APERTURE_EXPLAIN"), "1");
  EXPECT_EQ(settings.at("APERTURE_LOG"), "warn");
  EXPECT_EQ(made(explain_with({{"FI_LOG_LEVEL", "off"}})).at("APERTURE_LOG"), "warn");
  EXPECT_EQ(made(plan_with({})).count("APERTURE_EXPLAIN"), 0u);
  EXPECT_EQ(made(plan_with({})).count("APERTURE_LOG"), 0u);
}

TEST(Surroundings, explain_preloads_behind_the_verbs_door_and_before_what_the_user_has) {
  Place place = kPlace;
  place.explain = true;
  place.explain_library = "/opt/ap/lib/explain.so";
  const auto preloaded = [&](const char* users) {
    return made(plan(place,
                     [&](const char* name) {
                       return name == std::string("LD_PRELOAD") ? users : nullptr;
                     }))
        .at("LD_PRELOAD");
  };
  EXPECT_EQ(preloaded(nullptr), "/opt/ap/lib/explain.so");
  EXPECT_EQ(preloaded("/mine.so"), "/opt/ap/lib/explain.so:/mine.so");
  place.verbs_library = "/opt/ap/lib/verbs.so";
  EXPECT_EQ(preloaded(nullptr), "/opt/ap/lib/verbs.so:/opt/ap/lib/explain.so");
  EXPECT_EQ(preloaded("/mine.so"), "/opt/ap/lib/verbs.so:/opt/ap/lib/explain.so:/mine.so");
  place.explain = false;
  EXPECT_EQ(preloaded("/mine.so"), "/opt/ap/lib/verbs.so:/mine.so");
}

TEST(Surroundings, whatever_is_preloaded_a_program_with_address_sanitizer_bears_it) {
  Place place = kPlace;
  place.explain = true;
  const auto options = [&] {
    Settings settings = made(plan(place, [](const char* name) {
      return name == std::string("ASAN_OPTIONS") ? "exitcode=7" : nullptr;
    }));
    return settings.count("ASAN_OPTIONS") == 0 ? "" : settings.at("ASAN_OPTIONS");
  };
  EXPECT_EQ(options(), "");
  place.explain_library = "/opt/ap/lib/explain.so";
  EXPECT_EQ(options(), "verify_asan_link_order=0:exitcode=7");
  place.verbs_library = "/opt/ap/lib/verbs.so";
  EXPECT_EQ(options(), "verify_asan_link_order=0:exitcode=7");
}

TEST(Surroundings, a_path_that_a_list_cannot_hold_is_named_and_left_out) {
  Place place = kPlace;
  place.explain = true;
  const auto plan_in = [&](const std::string& folder) {
    place.provider_folder = folder;
    place.explain_library = folder + "/explain.so";
    return plan(place, [](const char*) { return nullptr; });
  };
  const Surroundings spaced = plan_in("/opt/my lib");
  EXPECT_EQ(made(spaced).at("FI_PROVIDER_PATH"), "/opt/my lib:/usr/lib/libfabric");
  EXPECT_EQ(made(spaced).count("LD_PRELOAD"), 0u);
  ASSERT_EQ(spaced.notes.size(), 1u);
  EXPECT_EQ(spaced.notes[0].rfind("'/opt/my lib/explain.so' has a space in it, and LD_PRELOAD", 0),
            0u);
  const Surroundings divided = plan_in("/opt/a:b");
  EXPECT_EQ(made(divided).count("FI_PROVIDER_PATH"), 0u);
  EXPECT_EQ(made(divided).count("LD_PRELOAD"), 0u);
  ASSERT_EQ(divided.notes.size(), 2u);
  EXPECT_EQ(divided.notes[0].rfind("'/opt/a:b' has a colon in it, and FI_PROVIDER_PATH", 0), 0u);
  EXPECT_TRUE(plan_in("/opt/a;b").notes.empty());
  EXPECT_NE(why_not_in_list("LD_LIBRARY_PATH", "/a;b").find("a semicolon"), std::string::npos);
  EXPECT_EQ(why_not_in_list("LD_LIBRARY_PATH", "/a b"), "");
}

TEST(Surroundings, explain_leaves_a_log_that_says_more) {
  for (const char* level : {"warn", "info", "debug"}) {
    for (const char* ours : {level, "loud"}) {  // what is no level is taken as warn
      const Surroundings s = explain_with({{"APERTURE_LOG", ours}});
      EXPECT_EQ(made(s).count("APERTURE_LOG"), 0u);
      EXPECT_TRUE(s.notes.empty());
    }
    EXPECT_EQ(made(explain_with({{"FI_LOG_LEVEL", level}})).count("APERTURE_LOG"), 0u);
  }
  const Surroundings silent = explain_with({{"APERTURE_LOG", "off"}});
  EXPECT_EQ(made(silent).count("APERTURE_LOG"), 0u);
  ASSERT_EQ(silent.notes.size(), 1u);
  EXPECT_NE(silent.notes[0].find("APERTURE_LOG=off"), std::string::npos);
}

TEST(Surroundings, a_mapping_policy_of_the_user_is_kept) {
  for (const char* variable :
       {"OMPI_MCA_rmaps_base_oversubscribe", "PRTE_MCA_rmaps_default_mapping_policy"}) {
    const Surroundings s = plan_with({{variable, "core"}});
    EXPECT_EQ(made(s).count(variable), 0u);
    EXPECT_TRUE(s.notes.empty());
  }
}

TEST(ListAdmits, names_are_compared_whole) {
  EXPECT_TRUE(list_admits("aperture", "aperture"));
  EXPECT_FALSE(list_admits("aperture2", "aperture"));
  EXPECT_FALSE(list_admits("", "aperture"));
  EXPECT_TRUE(list_admits("^aperture2", "aperture"));
}

}  // namespace
}  // namespace aperture::tool
