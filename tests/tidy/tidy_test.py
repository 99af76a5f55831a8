"""Proof that each rule of tidy.py and settings.py fires on a bad sample and keeps quiet on its good
neighbour.
"""
import tempfile
import unittest
from pathlib import Path

import class_size
import cpp_shape
import settings
import tidy
from tidy import Source

OPENING = "// What this is for.\n"


def body(lines: int) -> str:
    return "".join(f"  a{number}();\n" for number in range(lines))


def rules(*samples: Source) -> set[str]:
    breaches = tidy.check(list(samples), exists=lambda path: path == "docs/x.md")
    return {breach.rule for breach in breaches}


class Rules(unittest.TestCase):
    def fires(self, rule: str, path: str, bad: str, good: str, good_path: str = ""):
        self.assertIn(rule, rules(Source(path, bad)))
        self.assertNotIn(rule, rules(Source(good_path or path, good)))

    def test_a_room_knows_only_the_rooms_beneath_it(self):
        self.fires("include", "src/ring/a.hpp", '#include "qp/b.hpp"\n', '#include "base/b.hpp"\n')
        self.fires("include", "src/protect/a.hpp", '#include "link/b.hpp"\n',
                   '#include "protect/b.hpp"\n')
        self.fires("include", "src/link/shm/a.hpp", '#include "nic/b.hpp"\n',
                   '#include "link/lane.hpp"\n')
        self.fires("include", "src/ib/a.hpp", '#include "qp/b.hpp"\n',
                   '#include "transport/b.hpp"\n')
        self.fires("include", "src/tool/a.hpp", '#include "nic/b.hpp"\n', '#include "base/b.hpp"\n')

    def test_includes_name_their_room(self):
        self.fires("include", "src/base/a.cpp", '#include "a.hpp"\n', '#include "base/a.hpp"\n')

    def test_a_room_that_nobody_placed(self):
        self.fires("include", "src/attic/a.cpp", OPENING, OPENING, good_path="src/base/a.cpp")

    def test_foreign_headers_have_one_user(self):
        rdma = "#include <rdma/fabric.h>\n"
        self.fires("include", "src/nic/a.cpp", rdma, rdma, good_path="src/provider/a.cpp")
        self.fires("include", "src/provider/a.cpp", "#include <infiniband/verbs.h>\n", rdma)
        self.assertNotIn("include", rules(Source("tests/doors/a.cpp", rdma)))
        kernel = "#include <rdma/rdma_user_cm.h>\n"
        self.fires("include", "src/provider/a.cpp", kernel, kernel, good_path="src/verbs/a.cpp")

    def test_lines_have_100_columns(self):
        self.fires("columns", "src/base/a.cpp", "/" * 101 + "\n", "/" * 100 + "\n")
        self.fires("columns", "dev", "#" * 101, "#" * 100)
        self.assertNotIn("columns", rules(Source("src/base/a.cpp", "// " + "\u00e9" * 97 + "\n")))

    def test_files_have_700_lines(self):
        self.fires("file-length", "src/base/a.cpp", OPENING + "\n" * 700, OPENING + "\n" * 699)

    def test_functions_have_70_lines(self):
        for head in ("void f()", "int C::f(int a) const noexcept", "C::C(int a) : a_(a)",
                     "template <class T>\nvoid f(std::span<T> a) requires(sizeof(T) > 1)",
                     "TEST(Room, behaves)", "bool operator==(const C& a)"):
            used = head.count("\n") + 2
            self.fires("function-length", "src/base/a.cpp", f"{head} {{\n{body(71 - used)}}}\n",
                       f"{head} {{\n{body(70 - used)}}}\n")

    def test_python_functions_too(self):
        text = "def f():\n" + "    a()\n" * 69
        self.fires("function-length", "bench/a.py", text + "    a()\n", text)

    def test_types_tables_and_namespaces_are_no_functions(self):
        for head in ("namespace a", "class alignas(64) C", "struct S final : B<int(int)>",
                     "constexpr T kTable[size(4)] =", 'extern "C"', "enum class E : X(1)"):
            text = f"{head} {{\n{'  int a();' + chr(10)}{'  // word' + chr(10) * 80}}};\n"
            self.assertNotIn("function-length", rules(Source("src/base/a.cpp", text)), head)

    def test_classes_have_33_member_functions(self):
        def of(most: str, count: int = 1) -> str:
            few = "".join(f"  int f{number}();\n" for number in range(class_size.MOST + 1 - count))
            return f"{OPENING}class A final : public B {{\n public:\n{few}{most}\n}};\n"
        for one in ("int a() const { return f(b, {1}); }", "virtual ~B(); int a() = 0;",
                    "template <typename T>\n  requires(is<T>) T a(T&& b) noexcept(c(b));",
                    "[[gnu::cold]] static Result<int> a(int (*b)(int), int c = d(3));",
                    "auto a() -> std::function<void(int)> { struct C { int f(); }; return c; }",
                    "alignas(64) int a() { if (b) { c(); } else { d(); } }"):
            self.assertIn("class-size", rules(Source("src/base/a.hpp", of(one))), one)
            self.assertNotIn("class-size", rules(Source("src/base/a.hpp", of(one, 2))), one)
            self.assertNotIn("class-size", rules(Source("tests/base/a.hpp", of(one))), one)
        for none in ("A(); explicit A(int b) : b_(b), c_{f(b)}, d_(3) {}", "~A() { f(); }",
                     "bool operator==(const A&) const; explicit operator bool() { return f(); }",
                     "int a() = delete; int b(int) = default;", "int (*a_)(int) = nullptr;",
                     "std::function<void(int)> a_; int b_ = f(3); alignas(f(64)) int c_;",
                     "friend bool a(int); using B::a; static_assert(f(a));", "// int a();",
                     "class C { int a(); int b() { return 1; } };", "APERTURE_WORDS(a);"):
            self.assertNotIn("class-size", rules(Source("src/base/a.hpp", of(none))), none)

    def test_a_class_of_many_functions_is_named_with_their_count(self):
        functions = "".join(f"  int f{number}() {{}}\n" for number in range(34))
        source = Source("src/base/a.cpp",
                        f"{OPENING}namespace {{\nclass A::B {{\n{functions}}};\n}}\n")
        found = [each for each in tidy.check([source]) if each.rule == "class-size"]
        self.assertEqual([each.line for each in found], [3])
        self.assertIn("A::B has 34 member functions, at most 33", found[0].advice)

    def test_what_holds_state_asserts(self):
        def holder(member: str, times: int = 0) -> str:
            return f"{OPENING}class A {{\n  {member}\n}};\n" + "void f() { assert(a); }\n" * times
        for member in ("int count_ = 0;", "std::atomic<bool> any_{false};", "const T* at_;",
                       "uint64_t words_[4];", "std::map<int, void (*)()> all_;"):
            self.fires("asserted", "src/base/a.hpp", holder(member, 1), holder(member, 2))
        for member in ("const int count_;", "T& one_;", "T* const one_;", "static int all_;",
                       "int count() { return count_; }", "// int count_;"):
            self.assertNotIn("asserted", rules(Source("src/base/a.hpp", holder(member))), member)
        self.assertNotIn("asserted", rules(Source("tests/base/a.hpp", holder("int a_;"))))

    def test_a_header_and_its_source_assert_together(self):
        header = Source("src/base/a.hpp", OPENING + "class A {\n  int a_;\n};\n")
        def source(line: str) -> Source:
            return Source("src/base/a.cpp", f"{OPENING}{line}\n{line}\n")
        self.assertIn("asserted", rules(header, source("static_assert(a);")))
        self.assertIn("asserted", rules(header, source("// assert(a);")))
        self.assertNotIn("asserted", rules(header, source("APERTURE_DEBUG_ASSERT(a);")))

    def test_names_say_something(self):
        self.fires("name", "src/base/string_util.hpp", OPENING, OPENING,
                   good_path="src/base/utility.hpp")
        self.fires("name", "src/common/a.hpp", OPENING, OPENING, good_path="src/base/a.hpp")

    def test_files_open_with_a_comment(self):
        self.fires("opening", "src/base/a.cpp", "#include <new>\n", OPENING)
        self.fires("opening", "examples/a.sh", "#!/bin/sh\nset -e\n", "#!/bin/sh\n# Says hello.\n")
        self.fires("opening", "bench/a.py", "import os\n", '"""Measures."""\nimport os\n')
        self.fires("opening", "src/base/a.hpp", OPENING, OPENING + "#pragma once\n")

    def test_no_paths_of_one_machine(self):
        for folder in ("ro" "ot", "ho" "me", "wo" "rk"):
            self.fires("machine-path", "README.md", f"see /{folder}/x\n", f"see src/{folder}/x\n")

    def test_nothing_is_left_open(self):
        self.fires("unfinished", "src/base/a.cpp", "// TO" "DO: x\n", "// TODOS are a word\n")

    def test_no_blanks_at_the_end(self):
        self.fires("trailing-space", "src/base/a.cpp", OPENING + "int a; \n", OPENING + "int a;\n")

    def test_relaxed_says_why(self):
        use = "x.load(std::memory_order_relaxed);\n"
        self.fires("relaxed", "src/base/a.cpp", OPENING + "\n" * 3 + use,
                   OPENING + "\n" * 3 + "// relaxed: only we store it\n" + use)
        once = "void f() {\n  " + use + "\n  // relaxed: only we store it\n  " + use + "}\n"
        self.fires("relaxed", "src/base/a.cpp", OPENING + "\n" + once.replace("// relaxed", "// "),
                   OPENING + "\n" + once)

    def test_sync_points_have_two_ends(self):
        end = Source("src/ring/a.hpp", "// SYNC POINT: slot-ready: the payload\n")
        other = Source("src/ring/b.hpp", "// SYNC POINT: slot-ready (pairs with a)\n")
        stray = Source("src/ring/b.hpp", "// SYNC POINT: slot-red\n")
        self.assertIn("sync-point", rules(end))
        self.assertIn("sync-point", rules(end, stray))
        self.assertNotIn("sync-point", rules(end, other))

    def test_links_lead_somewhere(self):
        self.fires("link", "README.md", "[a](docs/y.md)\n",
                   "[a](docs/x.md#part), [b](https://a.b/c)\n")
        self.fires("link", "docs/a.md", "[a](docs/x.md)\n", "[a](x.md)\n")

    def test_files_that_a_document_names_are_there(self):
        self.fires("named-file", "docs/a.md", "| `ring/y.hpp` |\n",
                   "`docs/x.md`, `y.hpp`, `tests/<room>/y.hpp`, `docs/`\n")
        self.fires("named-file", "src/base/a.cpp", "// What: x.md.\n", "// What: docs/x.md.\n")


class Floors(unittest.TestCase):
    """ARCHITECTURE.md's drawing against tidy.py's own table."""
    TREE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"

    def faults(self, old: str = "", new: str = "") -> list[str]:
        text = self.TREE.read_text()
        self.assertIn(old, text)
        changed = Source("ARCHITECTURE.md", text.replace(old, new, 1))
        return [each.advice for each in tidy.check_floors(changed)]

    def test_the_tree_is_drawn_as_it_is(self):
        self.assertEqual(self.faults(), [])

    def test_a_room_on_another_floor(self):
        self.assertCountEqual(self.faults("    floor 4   transport/", "    floor 5   transport/"),
                              ["room 'transport' stands on floor 4", "room 'qp' stands on floor 6",
                               "room 'ib' stands on floor 6"])
        self.assertCountEqual(self.faults("    floor 6   msg/", "              msg/"),
                              ["room 'msg' stands on floor 6",
                               "room 'collective' stands on floor 6",
                               "room 'nic' stands on floor 8"])

    def test_a_room_that_is_not_drawn_or_does_not_exist(self):
        self.assertEqual(self.faults("              protect/", "              shelter/"),
                         ["draw room 'protect', as tidy.py has it",
                          "tidy.py's BENEATH has no room 'shelter'"])

    def test_who_stands_beside_knows_base_alone_and_is_known_to_nobody(self):
        self.assertEqual(self.faults("    floor 9   verbs/", "    beside    verbs/"),
                         ["room 'verbs' is part of a floor"])
        self.assertIn("room 'ring' is part of a floor",
                      self.faults("    floor 1   ring/", "    beside    ring/"))

    def test_no_drawing_at_all(self):
        found = list(tidy.check_floors(Source("ARCHITECTURE.md", "# Architecture\n")))
        self.assertEqual(len(found), len(tidy.BENEATH))


class Shape(unittest.TestCase):
    def names(self, text: str) -> list[str]:
        return [function.name for function in cpp_shape.functions(text)]

    def test_braces_in_comments_and_literals_do_not_count(self):
        text = 'void f() {\n  a("}", \'}\', R"x(})x");  // }\n  /* } */\n}\nvoid g() {\n}\n'
        self.assertEqual(self.names(text), ["f", "g"])

    def test_digit_separators_are_no_literals(self):
        text = "void f() { x = 1'000; }\nvoid g() { y = 2'000; }\n"
        self.assertEqual(self.names(text), ["f", "g"])

    def test_members_inside_types_inside_namespaces_are_found(self):
        text = "namespace a {\nclass C {\n public:\n  int f() const { return 1; }\n};\n}\n"
        self.assertEqual(self.names(text), ["f"])

    def test_initialisers_are_no_functions(self):
        self.assertEqual(self.names("const auto t = make({1, 2});\nT u = {f(1)};\n"), [])

    def test_lines_run_from_declaration_to_closing_brace(self):
        (function,) = cpp_shape.functions("\nint\nf(int a,\n  int b) {\n  return a;\n}\n")
        self.assertEqual((function.first_line, function.last_line), (2, 6))

    def test_preprocessor_lines_are_skipped(self):
        text = "#define X(a) do { \\\n  a \\\n} while (0)\nvoid f() {}\n"
        self.assertEqual(self.names(text), ["f"])


class Settings(unittest.TestCase):
    PAGE = ".Sh ENVIRONMENT\n.It Ev APERTURE_A , XDG_HOME , \\\nFI_APERTURE_B\nSets APERTURE_C.\n"
    CODE = 'f(setting_is("APERTURE_A", "x"), getenv("TMPDIR")); g(setting_text(kB));\n'
    CONSTANT = 'constexpr char kB[] = "FI_APERTURE_B";\n'
    TABLE = ('    {"APERTURE_A", Kind::word, "Sets", kNotSet},\n'
             '    {"FI_APERTURE_B", Kind::list,\n     "Sets, "\n     "ENVIRONMENT", kNotSet},\n')

    def faults(self, code: str, page: str = PAGE, room: str = "nic",
               table: str = TABLE) -> list[str]:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            for folder in (f"src/{room}", "src/base", "docs/man"):
                (root / folder).mkdir(parents=True)
            (root / f"src/{room}/x.cpp").write_text(code)
            (root / "src/base/names.hpp").write_text(self.CONSTANT)
            (root / settings.TABLE).write_text(table)
            (root / "docs/man/aperture.1").write_text(page)
            return settings.faults_in(root)

    def test_what_is_read_and_documented_is_sound(self):
        self.assertEqual(self.faults(self.CODE), [])

    def test_a_variable_that_no_page_names(self):
        row = '    {"APERTURE_C", Kind::number, "", kNotSet},\n'
        read = self.CODE + 'setting_number("APERTURE_C");\n'
        self.assertEqual(len(self.faults(read, table=self.TABLE + row)), 1)

    def test_a_variable_that_nobody_reads(self):
        row = '    {"APERTURE_D", Kind::number, "", kNotSet},\n'
        page = self.PAGE + ".It Ev APERTURE_D\n"
        self.assertEqual(len(self.faults(self.CODE, page, table=self.TABLE + row)), 1)

    def test_a_variable_that_is_not_in_the_table(self):
        page = self.PAGE + ".It Ev APERTURE_D\n"
        self.assertEqual(len(self.faults(self.CODE + 'setting_text("APERTURE_D");\n', page)), 1)

    def test_a_word_that_no_page_says(self):
        table = self.TABLE.replace('"Sets"', '"Sets, forgotten"')
        self.assertEqual(len(self.faults(self.CODE, table=table)), 1)

    def test_a_variable_that_is_read_beside_the_table(self):
        for name in ('"APERTURE_A"', "kB"):
            self.assertEqual(len(self.faults(self.CODE + f"::secure_getenv({name});\n")), 1)

    def test_a_computed_name_outside_the_tool(self):
        computed = self.CODE + "getenv(name);\n"
        self.assertEqual(len(self.faults(computed)), 1)
        self.assertEqual(self.faults(computed, room="tool"), [])

    def test_a_tree_that_reads_nothing(self):
        self.assertTrue(self.faults("", ".Sh ENVIRONMENT\n", table=""))


class Tree(unittest.TestCase):
    def test_every_room_is_placed_beneath_the_doors(self):
        for room, beneath in tidy.BENEATH.items():
            for other in beneath:
                self.assertLessEqual(set(tidy.BENEATH[other]), set(beneath), f"{room} over {other}")


if __name__ == "__main__":
    unittest.main()
