"""Each rule finds what is bad and leaves what is good alone."""

from __future__ import annotations

import unittest
from collections.abc import Iterator

from tools.lint import build_files, classes, compiler, kinds, layers, pages, size, text, threads
from tools.lint.source import Finding, Source

CLASS = "// What it is. Threads: any. Owns: nothing.\nclass Wheel {\n};\n"
LONG_BODY = "  Turn();\n" * 70


def guarded(path: str, body: str = "") -> str:
    """A header's text with the guard that belongs to `path`."""
    guard = "PELTON_" + path.replace("/", "_").replace(".", "_").upper() + "_"
    return f"#ifndef {guard}\n#define {guard}\n{body}\n#endif  // {guard}\n"


class RulesTest(unittest.TestCase):
    """One method per rule."""

    def expect(self, findings: Iterator[Finding], lines: list[int]) -> None:
        """The findings are on these lines and on no others."""
        self.assertEqual([finding.line for finding in findings], lines)

    def test_headers_are_compiled_again_when_one_has_changed(self) -> None:
        header, code = Source("a.h", "int x;"), Source("a.cc", "int x = 1;")
        key = compiler.key_of([header, code])
        self.assertEqual(key, compiler.key_of([header, Source("a.cc", "int x = 2;")]))
        self.assertNotEqual(key, compiler.key_of([Source("a.h", "long x;"), code]))
        self.assertNotEqual(key, compiler.key_of([header]))

    def test_headers_over_generated_ones_are_not_compiled_alone(self) -> None:
        texts = {
            "a.h": '#include "b.h"\n',
            "b.h": '#include "proto/x.pb.h"\n',
            "c.h": '#include "d.h"\n',
            "d.h": '#include "c.h"\n',
        }
        headers = {path: Source(path, text) for path, text in texts.items()}
        self.assertEqual([path for path in texts if compiler.needs_generated(path, headers)], ["a.h", "b.h"])

    def test_includes_go_downward_only(self) -> None:
        good = Source("comm/x.cc", '#include "comm/x.h"\n#include "core/base/ids.h"\n#include <vector>\n')
        self.expect(layers.check_includes(good), [])
        self.expect(layers.check_includes(Source("core/base/x.h", '\n#include "comm/group.h"\n')), [2])
        self.expect(layers.check_includes(Source("comm/x.cc", '#include "backend/backend.h"\n')), [1])

    def test_folders_do_not_include_one_another(self) -> None:
        below = Source("core/plan/plan.cc", '\n#include "core/round/round.h"\n')
        above = Source("core/round/round.cc", '#include "core/plan/plan.h"\n')
        test = Source("core/plan/plan_test.cc", '#include "core/round/round.h"\n')
        self.expect(layers.check_circles([above, test]), [])
        self.expect(layers.check_circles([above, below]), [2])

    def test_only_baguas_names_import_what_changes_torchs_classes(self) -> None:
        for line in ("from pelton.torch_api import env\n", "    from pelton import torch_api\n"):
            self.expect(layers.check_python_imports(Source("torch_bindings/pelton/_front.py", line)), [1])
            self.expect(layers.check_python_imports(Source("torch_bindings/pelton/torch_api/moe.py", line)), [])
        text = '"""See `pelton.torch_api`."""\n'
        self.expect(layers.check_python_imports(Source("torch_bindings/pelton/_front.py", text)), [])

    def test_only_control_and_backend_know_the_messages(self) -> None:
        include = '#include "proto/control.pb.h"\n'
        self.expect(layers.check_includes(Source("comm/control/wire.cc", include)), [])
        self.expect(layers.check_includes(Source("backend/x.cc", include)), [])
        self.expect(layers.check_includes(Source("comm/await.cc", include)), [1])
        self.expect(layers.check_includes(Source("algorithms/x.cc", include)), [1])

    def test_algorithms_know_no_transport_but_their_tests_do(self) -> None:
        include = '#include "comm/transport/sim/sim_fabric.h"\n'
        self.expect(layers.check_includes(Source("algorithms/gossip.cc", include)), [1])
        self.expect(layers.check_includes(Source("algorithms/conformance_test.cc", include)), [])

    def test_third_party_headers_stay_in_their_folders(self) -> None:
        self.expect(layers.check_includes(Source("torch_bindings/csrc/x.cc", "#include <torch/library.h>\n")), [])
        self.expect(layers.check_includes(Source("backend/x.cc", "#include <torch/library.h>\n")), [1])
        self.expect(layers.check_includes(Source("core/actor/x.cc", "#include <grpcpp/grpcpp.h>\n")), [1])

    def test_labels_go_downward_only(self) -> None:
        good = 'cc_library(\n    name = "x",\n    deps = ["//core/base:ids"],\n)\n'
        self.expect(layers.check_labels(Source("comm/BUILD", good)), [])
        self.expect(layers.check_labels(Source("core/x/BUILD", 'a(deps = ["//comm:group"])\n')), [1])
        self.expect(layers.check_labels(Source("core/x/BUILD", 'a(visibility = ["//comm:__pkg__"])\n')), [])

    def test_files_are_short(self) -> None:
        self.expect(size.check_file(Source("core/x.cc", "\n" * 500)), [])
        self.expect(size.check_file(Source("core/x.cc", "\n" * 501)), [1])
        self.expect(size.check_file(Source("core/x_test.cc", "\n" * 600)), [])
        self.expect(size.check_file(Source("core/x_test.cc", "\n" * 601)), [1])
        self.expect(size.check_file(Source("docs/x.md", "\n" * 601)), [])

    def test_functions_are_short(self) -> None:
        head = "namespace pelton {\nvoid Wheel::Spin(int times) {\n"
        self.expect(size.check_functions(Source("core/x.cc", head + LONG_BODY[: 10 * 67] + "}\n}\n")), [])
        self.expect(size.check_functions(Source("core/x.cc", head + LONG_BODY + "}\n}\n")), [2])
        excused = "// Long because there is a line per opcode.\nvoid Spin() {\n" + LONG_BODY + "}\n"
        self.expect(size.check_functions(Source("core/x.cc", excused)), [])

    def test_a_long_method_in_a_class_is_found_and_a_long_class_is_not(self) -> None:
        self.expect(
            size.check_functions(Source("core/x.h", "class A : public B<int> {\n" + "  int x;\n" * 90 + "};\n")), []
        )
        method = "class A {\n public:\n  template <typename T>\n  T Get() const {\n" + LONG_BODY + "  }\n};\n"
        self.assertEqual(len(list(size.check_functions(Source("core/x.h", method)))), 1)

    def test_braces_in_literals_and_comments_do_not_count(self) -> None:
        code = "void A() {\n  Say(\"}{{\");  // {{{\n  char c = '{';\n}\n" + "int x;\n" * 90
        self.expect(size.check_functions(Source("core/x.cc", code)), [])

    def test_banned_calls(self) -> None:
        for bad in (
            "std::mutex mutex_;",
            "absl::SleepFor(absl::Seconds(1));",
            "int x = rand();",
            "auto now = absl::Now();",
            "using namespace std;",
            'printf("x");',
            "thread.detach();",
            "std::future<int> later;",
            'throw std::runtime_error("x");',
        ):
            self.expect(text.check_calls(Source("comm/x.cc", f"\n{bad}\n")), [2])
        for good in ("Mutex mutex_;", '// never absl::SleepFor\nSay("rand()");', "Operand(2);", "sleeper.sleep(1);"):
            self.expect(text.check_calls(Source("comm/x.cc", good)), [])
        self.expect(text.check_calls(Source("core/base/sync.h", "std::mutex mutex_;")), [])
        self.expect(text.check_calls(Source("comm/x.cc", "t.detach();  // ALLOW: it is not in this child\n")), [])

    def test_tests_do_not_sleep_or_skip(self) -> None:
        self.expect(text.check_calls(Source("comm/x_test.cc", "std::this_thread::sleep_for(kLong);")), [1])
        self.expect(text.check_calls(Source("comm/x_test.cc", "GTEST_SKIP();")), [1])
        self.expect(text.check_calls(Source("comm/x_test.cc", "auto now = absl::Now();")), [])

    def test_header_guards(self) -> None:
        self.expect(text.check_guard(Source("comm/x.h", guarded("comm/x.h"))), [])
        self.expect(text.check_guard(Source("comm/x.h", guarded("comm/y.h"))), [1, 4])
        self.expect(text.check_guard(Source("comm/x.h", "#pragma once\n")), [1, 1])

    def test_guards_of_headers_per_instruction_set(self) -> None:
        guard = "PELTON_COMM_X_INL_H_"
        toggled = f"#if defined({guard}) == defined(HWY_TARGET_TOGGLE)\n#ifdef {guard}\n#endif\n#endif  // {guard}\n"
        self.expect(text.check_guard(Source("comm/x-inl.h", toggled)), [])
        self.expect(text.check_guard(Source("comm/y-inl.h", toggled)), [1, 4])
        self.expect(text.check_guard(Source("comm/x-inl.h", guarded("comm/x_inl.h"))), [1])

    def test_own_header_comes_first(self) -> None:
        paths = frozenset({"comm/x.h", "comm/x.cc"})
        good = Source("comm/x.cc", '// Comment.\n#include "comm/x.h"\n\n#include <map>\n')
        self.expect(text.check_own_header_first(good, paths), [])
        bad = Source("comm/x.cc", '#include <map>\n#include "comm/x.h"\n')
        self.expect(text.check_own_header_first(bad, paths), [1])

    def test_places_are_not_named(self) -> None:
        self.expect(text.check_places(Source("docs/x.md", "see $HOME/x and out/test/x\n/usr/lib\n")), [])
        self.expect(text.check_places(Source("docs/x.md", "\nin /" + "root/x\n")), [2])
        self.expect(text.check_places(Source("tools/x", "https://pypi" + ".org/simple\n")), [1])

    def test_class_names_say_something(self) -> None:
        self.expect(classes.check_names(Source("comm/x.h", "class BucketScheduler {\n};\nclass Database {};\n")), [])
        self.expect(
            classes.check_names(Source("comm/x.h", "class BucketManager {\n};\nstruct TensorInfo {};\n")), [1, 3]
        )

    def test_a_namespace_has_one_class_of_a_name(self) -> None:
        one = Source("comm/x.h", "namespace pelton {\nstruct Stop {};\n}  // namespace pelton\n")
        twin = Source(
            "core/y.h", "namespace pelton {\nclass Wheel;\nstruct Stop {\n  int why;\n};\n}  // namespace pelton\n"
        )
        other = Source("core/z.h", "namespace pelton::tcp {\nstruct Stop {};\n}  // namespace pelton::tcp\n")
        own = "namespace pelton {\nnamespace {\nstruct Stop {};\n}  // namespace\n}  // namespace pelton\n"
        nested = Source("comm/x.cc", "namespace pelton {\nstruct Stop::Reason {\n};\n}  // namespace pelton\n")
        program = Source("tools/t.cc", one.text + "int main() { return 0; }\n")
        self.expect(classes.check_one_definition([one, other, Source("comm/w.cc", own), nested, program]), [])
        self.expect(classes.check_one_definition([one, twin]), [3])

    def test_classes_state_their_contract(self) -> None:
        self.expect(classes.check_contracts(Source("comm/x.h", CLASS)), [])
        self.expect(classes.check_contracts(Source("comm/x.h", "// What it is. Owns: it.\nclass Wheel {\n};\n")), [2])
        self.expect(classes.check_contracts(Source("comm/x.h", "class Wheel final : public A {\n};\n")), [1, 1])
        self.expect(classes.check_contracts(Source("comm/x.h", "struct Options {\n  int count = 0;\n};\n")), [])
        self.expect(classes.check_contracts(Source("comm/x.h", "class Wheel;\n")), [])
        templated = CLASS.replace("class", "template <typename T>\nclass")
        self.expect(classes.check_contracts(Source("comm/x.h", templated)), [])

    def test_one_library_per_header(self) -> None:
        bad = 'cc_library(\n    name = "x",\n    hdrs = ["a.h", "b.h"],\n)\n'
        self.expect(build_files.check_one_header(Source("comm/BUILD", bad)), [1])
        self.expect(build_files.check_one_header(Source("comm/BUILD", bad.replace(', "b.h"', ""))), [])
        excused = "# Two headers, one library: each names the other.\n" + bad
        self.expect(build_files.check_one_header(Source("comm/BUILD", excused)), [])

    def test_a_target_depends_on_the_library_of_each_header_that_it_includes(self) -> None:
        build = 'cc_library("a", deps = ["//core/base"])\ncc_test("a_test", deps = [":a", "//core/base:ids"])\n'
        code = Source("comm/a.cc", '#include "comm/a.h"\n#include "core/base/ids.h"\n')
        below = Source("core/base/BUILD", 'cc_library("base")\ncc_library("ids")\n')
        headers = [Source("comm/a.h", ""), Source("core/base/ids.h", ""), Source("core/base/base.h", "")]
        sources = [Source("comm/BUILD", build), code, below, *headers, Source("comm/a_test.cc", code.text)]
        self.expect(build_files.check_dependencies(sources), [2])
        mended = Source("comm/BUILD", build.replace('"//core/base"', '"//core/base:ids"'))
        self.expect(build_files.check_dependencies([mended, *sources[1:]]), [])
        self.expect(build_files.check_dependencies([*sources, Source("comm/WORKSPACE", "")]), [])

    def owners(self, path: str, code: str) -> list[str]:
        """The findings on one file, those on the list's other entries left out."""
        return [finding.message for finding in threads.check([Source(path, code)]) if finding.path == path]

    def test_who_owns_a_thread_or_a_lock_is_listed(self) -> None:
        for bad in (
            "mutable Mutex mutex_;",
            "CondVar changed_;",
            "  std::thread thread_;",
            "std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);",
            "static Mutex mutex;",
            "std::latch done(2);",
        ):
            self.assertEqual(len(self.owners("comm/x.h", bad)), 1, bad)
            self.assertEqual(self.owners("core/actor/x.h", bad), [])
            self.assertEqual(self.owners("comm/x_test.cc", bad), [])
            self.assertEqual(self.owners("comm/lane/lane.h", bad), [])
            self.assertEqual(self.owners("comm/transport/nccl/stand_in/world.h", bad), [])
        for good in (
            "MutexLock lock(&mutex_);",
            "std::thread::id owner_;",
            "for (std::thread& thread : threads) thread.join();",
            "explicit X(Mutex* mutex) : mutex_(*mutex) {}",
            "// One Mutex mutex_; less.",
        ):
            self.assertEqual(self.owners("comm/x.h", good), [], good)

    def test_the_list_of_owners_only_becomes_shorter(self) -> None:
        sources = [Source(f"{owner}.h", "Mutex mutex_;") for owner in threads.OWNERS]
        self.assertEqual(list(threads.check(sources)), [])
        self.assertEqual(len(list(threads.check(sources[1:]))), 1)
        self.assertLessEqual(len(threads.OWNERS), threads.MOST_OWNERS)

    def decisions(self, path: str, code: str) -> list[int]:
        """The lines of the findings on one file, those on the list's other entries left out."""
        return [finding.line for finding in kinds.check([Source(path, code)]) if finding.path == path]

    def test_who_decides_by_kind_is_listed(self) -> None:
        for bad in (
            "switch (kind) {\n  case OperationKind::kGather:\n",
            "const bool is_sum =\n    operation.kind == OperationKind::kAllReduce;",
            "if (OperationKind::kBarrier\n!= kind) return;",
            "\nif (kind > pelton::OperationKind::kNeighborAllGather) return;",
            "\nconstexpr int kLast = static_cast<int>(OperationKind::kNeighborAllGather);",
            "\nif (set.Contains(OperationKind::kReduce)) return;",
            "constexpr KindSet kKinds = {\n    OperationKind::kBarrier, OperationKind::kSend};",
        ):
            self.assertEqual(self.decisions("comm/x.cc", bad), [2], bad)
            self.assertEqual(self.decisions("comm/x_test.cc", bad), [])
            self.assertEqual(self.decisions("comm/collectives/recipes/x.cc", bad), [])
            self.assertEqual(self.decisions("comm/transport/shm/task_list.h", bad), [])
        for good in (
            "operation.kind = OperationKind::kAllReduce;",
            "return LaunchCollective(communicator, {.kind = OperationKind::kBarrier});",
            "LaunchCollective(communicator, {OperationKind::kAllGather, source, target});",
            "const bool sends = kind == OperationKind::kSend || OperationKind::kRecv == kind;",
            "bool combines() const { return kind == OperationKind::kNeighborAllReduce; }",
            "// case OperationKind::kGather: is no code",
        ):
            self.assertEqual(self.decisions("comm/x.cc", good), [], good)

    def test_the_list_of_those_who_decide_by_kind_only_becomes_shorter(self) -> None:
        sources = [Source(f"{owner}.cc", "case OperationKind::kGather:") for owner in kinds.NATIVE]
        self.assertEqual(list(kinds.check(sources)), [])
        self.assertEqual(len(list(kinds.check(sources[1:]))), 1)
        self.assertLessEqual(len(kinds.NATIVE), kinds.MOST_NATIVE)

    def test_files_that_pages_name_are_there(self) -> None:
        tree = [Source("core/round/scheduler.h", ""), Source("tools/lint/pages.py", "")]

        def lines(path: str, text: str) -> list[int]:
            return [finding.line for finding in pages.check_named_files([*tree, Source(path, text)])]

        good = "`scheduler.h`, `round/scheduler.h` and `core/round/scheduler.h`\n`pages.py`, `run`, `x.json`, gone.h\n"
        self.assertEqual(lines("docs/x.md", good), [])
        for bad in ("`gone.h`", "`core/scheduler.h`", "`uler.h`", "see `lint/gone.py`"):
            self.assertEqual(lines("docs/x.md", f"\n{bad}\n"), [2], bad)
            self.assertEqual(lines("docs/coming_from/x.md", bad), [1], bad)
            self.assertEqual(lines("README.md", bad), [1], bad)
            self.assertEqual(lines("docs/decisions/0001.md", bad), [])
            self.assertEqual(lines("core/x.cc", bad), [])

    def test_packages_are_not_public_by_default(self) -> None:
        bad = 'package(default_visibility = ["//visibility:public"])\n'
        self.expect(build_files.check_default_visibility(Source("comm/BUILD", bad)), [1])
        self.expect(
            build_files.check_default_visibility(Source("comm/BUILD", bad.replace("visibility:public", ":x"))), []
        )


if __name__ == "__main__":
    unittest.main()
