# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Which cases of the largest files `make test` runs: a sample that follows from the tree.

What one commit leaves out, the next ones run; one tree always runs the same.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

#: The sample that is drawn, any text; without it, the tree's hash.
NAME = "CLEAVE_TEST_SAMPLE"

#: A file to which the number of cases that the sample leaves out is written.
COUNT = "CLEAVE_TEST_LEFT_OUT"

#: Of the cases of each test of these files, `make test` runs one in so many; all run with
#: CLEAVE_TEST_ALL, or where tests are named.
SAMPLED = {
    "test_attention_masks": 2, "test_buckets": 6, "test_check": 2, "test_check_finite": 2,
    "test_check_large": 2, "test_cleave_run_ranks": 10, "test_cleave_run_sockets": 3,
    "test_closed_forms": 4, "test_collective_chunks": 2, "test_compressed_stages": 4,
    "test_compressed_training": 3, "test_compression": 2, "test_conditions": 2,
    "test_cuda_cudnn": 2, "test_cuda_device": 8, "test_cuda_interpreter": 3,
    "test_cuda_order": 8, "test_cuda_processes": 2, "test_cuda_programs": 2, "test_cuda_ranks": 4,
    "test_cuda_types": 2, "test_cuda_values": 2, "test_delayed_training": 2,
    "test_delayed_updates": 2, "test_deterministic": 8, "test_evaluation": 2,
    "test_exchange_rows": 3, "test_expert_loops": 4, "test_expert_overflow": 3,
    "test_expert_recipes": 3, "test_experts": 4, "test_experts_and_options": 4,
    "test_experts_in_16_bits": 3, "test_extremes": 3, "test_folded": 8, "test_four_axes": 2,
    "test_fp8_native": 3, "test_gathers": 4, "test_interlock": 4, "test_joined_batches": 8,
    "test_kept_traces": 16, "test_library_mixtures": 10, "test_library_mixtures_in_16_bits": 2,
    "test_loss_scale": 6, "test_measured": 2, "test_memory_forms": 5, "test_metrics": 3,
    "test_mixed_layouts": 2,
    "test_mixed_precision": 3, "test_mixed_resume": 3, "test_mixed_spread": 3,
    "test_narrow_saves": 2, "test_native_devices": 2, "test_native_four_axes": 2,
    "test_native_masks": 2, "test_native_pairs": 2, "test_native_pipedream": 10,
    "test_native_pipelines": 12, "test_offload": 3, "test_offload_failures": 2, "test_old_files": 3,
    "test_operator_edges": 2, "test_optimizer_fusion": 8,
    "test_optimizer_recipes": 3, "test_ordered_norms": 4, "test_outputs": 3, "test_package": 2,
    "test_package_decoders": 3, "test_package_families": 2, "test_paper_memory": 3,
    "test_pipe_slices": 3, "test_pipedream": 2, "test_pipeline_state": 3, "test_pipelines": 2,
    "test_planned_memory": 2, "test_post_validation": 3, "test_precision_plans": 8,
    "test_precision_shards": 2, "test_prediction": 2, "test_processes": 4,
    "test_pruned_training": 2, "test_pruning": 2, "test_random_graphs": 2,
    "test_random_operators": 5, "test_ranks_agree": 2, "test_recipe_pairs": 2,
    "test_recommender": 3, "test_recompute": 16, "test_recompute_search": 3, "test_relay_tokens": 3,
    "test_repeat": 3, "test_rules_and_options": 7, "test_run_data": 3, "test_run_loggers": 2,
    "test_run_loop": 2, "test_run_resume": 3, "test_scans": 2, "test_scatter_batches": 6,
    "test_signals": 2, "test_small_programs": 2, "test_sort_rows": 2, "test_stage_cuts": 3,
    "test_summa": 2, "test_top_k": 2, "test_trace_families": 3, "test_training_devices": 6,
    "test_training_dropout": 3, "test_training_shapes": 2, "test_traps": 2, "test_uneven": 5,
    "test_uneven_devices": 4, "test_uneven_micro_batches": 3, "test_update_rules": 2,
    "test_update_rules_native": 8, "test_volumes": 8, "test_written_buffers": 2,
}

#: Of the tests of these files, which take longest, `make test` runs one in so many.
IN_TURN = {
    "test_benchmarks": 3, "test_buckets": 2, "test_cleave_run_ranks": 3,
    "test_cleave_run_sockets": 2, "test_compressed_training": 2, "test_cuda_cudnn": 2,
    "test_cuda_device": 3, "test_cuda_order": 3, "test_cuda_processes": 2, "test_cuda_ranks": 2,
    "test_expert_loops": 2, "test_expert_overflow": 2, "test_fp8_native": 2, "test_gpu_harness": 2,
    "test_kept_traces": 2, "test_mixed_precision": 2, "test_native_pipedream": 2,
    "test_native_pipelines": 2, "test_optimizer_fusion": 2, "test_post_validation": 2,
    "test_processes": 2, "test_pruned_training": 2, "test_recompute": 2, "test_recompute_search": 2,
    "test_torchrun": 2, "test_trace_command": 2, "test_update_rules_native": 2,
}


def git_tree(root):
    """The hash of the working tree at `root`, what is new or changed included: the user's
    index and objects stay as they are. None where that is no repository."""
    def git(*arguments):
        return subprocess.run(("git", "-C", root, *arguments), env=environment, check=True, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()

    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        if pathlib.Path(git("rev-parse", "--show-toplevel")).resolve() != pathlib.Path(root).resolve():
            return None
        index = pathlib.Path(root, git("rev-parse", "--git-path", "index"))
        objects = str(pathlib.Path(root, git("rev-parse", "--git-path", "objects")).resolve())
        with tempfile.TemporaryDirectory(prefix="cleave-sample-") as folder:
            own = pathlib.Path(folder, "index")
            if index.exists():
                # Its facts of unchanged files save reading them. Its time says which of them may
                # have changed within the second.
                shutil.copy2(index, own)
            environment.update(GIT_INDEX_FILE=str(own), GIT_OBJECT_DIRECTORY=folder,
                               GIT_ALTERNATE_OBJECT_DIRECTORIES=objects)
            git("add", "--all")
            return git("write-tree")
    except (OSError, subprocess.SubprocessError):
        return None


def files_hash(root):
    """A hash of the names and contents of the files at `root` but for what builds and tests
    leave there: names that begin with a dot or with `build`, modules that were compiled."""
    digest = hashlib.sha1()
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "build", "__pycache__")))
        for name in sorted(files):
            path = pathlib.Path(folder, name)
            if not name.startswith(".") and path.suffix not in (".pyc", ".so") and path.is_file():
                own = hashlib.sha1(path.read_bytes()).hexdigest()
                digest.update(f"{path.relative_to(root)}\0{own}\0".encode())
    return digest.hexdigest()


def of_tree(root):
    """The name of the sample that is drawn of the tree at `root`."""
    return os.environ.get(NAME) or git_tree(root) or files_hash(root)


def places(name, test, share, count):
    """Of the `count` cases of a test, the places of those that the sample `name` runs: every
    share-th, and at least one."""
    share = min(share, count)
    first = int.from_bytes(hashlib.sha256(f"{name} {test}".encode()).digest()[:8], "big") % share
    return range(first, count, share)


def left_out(name, items):
    """The cases of pytest that the sample `name` does not run."""
    cases, tests = {}, {}
    for item in items:
        module = item.module.__name__
        test = item.nodeid.partition("::")[2].partition("[")[0]
        if module in IN_TURN:
            tests.setdefault(module, {}).setdefault(test, []).append(item)
        if hasattr(item, "callspec") and module in SAMPLED:
            cases.setdefault((module, test), []).append(item)
    dropped = set()
    for (module, test), own in cases.items():
        dropped.update(own)
        dropped.difference_update(
            own[place] for place in places(name, f"{module}.{test}", SAMPLED[module], len(own)))
    for module, own in tests.items():
        kept = places(name, module, IN_TURN[module], len(own))
        for place, of_test in enumerate(own.values()):
            if place not in kept:
                dropped.update(of_test)
    return dropped
