"""bench/stalls, on code of which it is known what waits."""
import os
import re
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "stalls")
LOADER = SourceFileLoader("stalls", os.path.abspath(PATH))
stalls = module_from_spec(spec_from_loader("stalls", LOADER))
LOADER.exec_module(stalls)


def found(*instructions: str) -> list:
    """The addresses of the loads that wait, in a function of these instructions."""
    lines = ["0000000000001000 <f()>:"]
    lines += [f"    {0x1000 + i:x}:\t{text}" for i, text in enumerate(instructions)]
    (function,) = stalls.functions("\n".join(lines), re.compile("f"))
    return [int(stall.partition(":")[0], 16) - 0x1000 for stall in function.stalls]


class StallsTest(unittest.TestCase):
    def test_a_load_of_two_stores_waits(self):
        self.assertEqual(found("mov    %rcx,0x10(%rsp)", "mov    %ecx,0x18(%rsp)",
                               "movq   0x14(%rsp),%xmm0"), [2])
        self.assertEqual(found("mov    %rax,0x8(%rdx)", "mov    %rcx,0x10(%rdx)",
                               "movdqu 0x8(%rdx),%xmm1"), [2])

    def test_a_load_wider_than_the_store_waits(self):
        self.assertEqual(found("mov    %cx,0x70(%rsp)", "mov    0x70(%rsp),%rcx"), [1])
        self.assertEqual(found("movb   $0x1,(%rsp)", "mov    (%rsp),%eax"), [1])

    def test_the_same_bytes_and_parts_of_them_are_handed_on(self):
        self.assertEqual(found("mov    %rcx,0x10(%rsp)", "movzwl 0x12(%rsp),%eax"), [])
        self.assertEqual(found("movups %xmm0,0x20(%rdx)", "mov    0x28(%rdx),%rax"), [])
        self.assertEqual(found("mov    %eax,(%rsp)", "mov    (%rsp),%eax"), [])

    def test_the_last_store_there_counts(self):
        self.assertEqual(found("mov    %cx,(%rsp)", "mov    %rax,(%rsp)", "mov    (%rsp),%rdx"), [])

    def test_other_bytes_and_other_places_do_not_matter(self):
        self.assertEqual(found("mov    %ecx,0x10(%rsp)", "mov    0x14(%rsp),%rax"), [])
        self.assertEqual(found("mov    %ecx,0x10(%rbx)", "mov    0x10(%rsp),%rax"), [])

    def test_a_register_that_has_changed_leads_elsewhere(self):
        self.assertEqual(found("mov    %ecx,(%rdx)", "add    $0x40,%rdx", "mov    (%rdx),%rax"), [])
        self.assertEqual(found("mov    %ecx,(%r9)", "mov    %eax,%r9d", "mov    (%r9),%rax"), [])
        self.assertEqual(found("mov    %ecx,(%rdx)", "cmp    %rax,%rdx", "mov    (%rdx),%rax"), [2])

    def test_a_store_has_left_after_a_call_and_after_many_instructions(self):
        self.assertEqual(found("mov    %ecx,(%rsp)", "call   1234 <g()>", "mov    (%rsp),%rax"), [])
        self.assertEqual(
            found("mov    %ecx,(%rsp)", "addr32 call 1234 <g()>", "mov    (%rsp),%rax"), [])
        many = ["nop"] * (stalls.WINDOW + 1)
        self.assertEqual(found("mov    %ecx,(%rsp)", *many, "mov    (%rsp),%rax"), [])

    def test_what_follows_a_jump_is_not_reached_from_before_it_and_its_target_is(self):
        self.assertEqual(found("movl   $0x0,0x10(%rax)", "jmp    2000", "mov    0x10(%rax),%rdi"),
                         [])
        self.assertEqual(found("movl   $0x0,0x10(%rax)", "jmp    1003", "ret",
                               "mov    0x10(%rax),%rdi"), [3])
        self.assertEqual(found("movl   $0x0,0x10(%rax)", "jne    1003", "nop",
                               "mov    0x10(%rax),%rdi"), [3])

    def test_string_instructions_wait_for_all_stores(self):
        self.assertEqual(found("xor    %eax,%eax", "rep stos %rax,%es:(%rdi)", "ret"), [1])
        self.assertEqual(found("rep movsq %ds:(%rsi),%es:(%rdi)", "repz ret"), [0])

    def test_registers_have_the_widths_that_their_names_say(self):
        for name, expected in {"%rax": ("rax", 8), "%eax": ("rax", 4), "%ax": ("rax", 2),
                               "%al": ("rax", 1), "%ch": ("rcx", 1), "%bpl": ("rbp", 1),
                               "%r9": ("r9", 8), "%r9d": ("r9", 4), "%r12w": ("r12", 2),
                               "%r8b": ("r8", 1), "%xmm3": ("xmm3", 16)}.items():
            self.assertEqual(stalls.register(name), expected, name)

    def test_only_wanted_functions_are_read(self):
        text = "10 <a()>:\n  10:\tmov %cx,(%rsp)\n  11:\tmov (%rsp),%rax\n20 <b()>:\n  20:\tret\n"
        self.assertEqual([f.name for f in stalls.functions(text, re.compile("b"))], ["b()"])


if __name__ == "__main__":
    unittest.main()
