"""Measure the speed of parts of the package, most of them against the plain way to do the same.

    python benchmarks/speed.py CASE                 print the measurements and keep them
    python benchmarks/speed.py CASE CASE ...        several, each in a separate process
    python benchmarks/speed.py CASE --help          the measurements and options of a case

The results, with the machine that they come from, are in benchmarks/results/CASE.json. The exit
code is 1 if a limit is exceeded. A case is a module of benchmarks/timings with a `CASE`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import takewhile

from machine import write
from timings.case import Case

CASES = {
    "bfloat16_step": "How much faster is a training step in bfloat16 on a processor?",
    "build_descendant": "How long does a descendant of DeiT-B's size take to build?",
    "cli_latency": "How long do the commands take that people wait for?",
    "closed_form_cost": "What do extraction and expansion by closed_form take?",
    "evaluation_batch": "In batches of which size is evaluation fastest on a processor?",
    "export_latency": "How fast do exported files predict, compared with timm's module?",
    "export_texts": "How fast do exported text models compute, next to transformers' module?",
    "hub_transfer": "What do publishing and fetching a family of 100 files take?",
    "ls_initialisation": "How long do the least-squares stitches of three anchors take?",
    "path_evaluation": "How long does it take to evaluate all paths of a pool in one pass?",
    "pool_step": "What does a distillation step of Learngene Pool cost?",
    "shelf_listing": "How long do commands take with a shelf of 10,000 cards?",
    "stitched_descendant": "How long does a descendant of a learngene pool take to build?",
    "streaming": "Does a pass over tars need more memory when there are more images?",
    "supernet_step": "What does a training step of LSAMD's super net cost?",
    "tal_graph": "How long does it take to build a ViT's graph from its spec?",
    "tal_predict": "How long does it take to predict the weights of a ViT of 12 layers?",
    "tal_step": "What does a step of meta-training at TAL's size cost?",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the named cases."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    names = list(takewhile(lambda word: word in CASES, words))
    if len(names) == 1:
        run_case(names[0], words[1:])
        return
    width = max(map(len, CASES))
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="\n".join(["cases:", *(f"  {name:{width}}  {CASES[name]}" for name in CASES)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="+", metavar="CASE", choices=CASES)
    names = parser.parse_args(words).cases
    codes = [subprocess.run([sys.executable, __file__, name]).returncode for name in names]
    if failed := [name for name, code in zip(names, codes) if code]:
        sys.exit(f"failed: {', '.join(failed)}")


def run_case(name: str, arguments: Sequence[str]) -> None:
    """Measure one case with its options, print and keep the numbers; exit with 1 if a limit is
    exceeded.
    """
    module = importlib.import_module(f"timings.{name}")
    case: Case = module.CASE
    parser = argparse.ArgumentParser(
        prog=f"speed.py {name}",
        description=f"{CASES[name]}\n\n{module.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    case.add_options(parser)
    if case.measure_part:
        parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if case.measure_part and args.part:
        print(json.dumps(case.measure_part(args)))
        return
    rows = []
    for row, text in case.measure(args):
        print(text, flush=True)
        rows.append(row)
    numbers = case.summarise(rows, args)
    print(write(f"{name}{case.name_suffix(args)}", numbers))
    case.write_page(numbers)
    if problem := case.find_problem(numbers, args):
        sys.exit(problem)


if __name__ == "__main__":
    main()
