"""The sizes of the paper's tables 1, 2 and 5, every cell: parameters and FLOPs as its code counts
them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from learngene_zoo.families.timm_config import find_architecture
from lgzoo_pool.pool import PoolExpander, PoolExtractor
from lgzoo_pool.settings import PoolSettings

# low, high, parameters, FLOPs. The paper prints 13.26 G for 0/9, which is 13.22 by its own count.
TABLE_1 = """
6 0  3048232   643846848
5 1 10378600  2026322688
4 2 17021608  3379362816
3 3 23664616  4732402944
2 4 30307624  6085443072
1 5 36950632  7438483200
0 6 44040424  8849935104
"""
TABLE_2 = """
9 0  4382824   951129024
8 1 11713192  2333604864
7 2 18356200  3686644992
6 3 24999208  5039685120
5 4 31642216  6392725248
4 5 38285224  7745765376
3 6 44928232  9098805504
2 7 51571240 10451845632
1 8 58214248 11804885760
0 9 65304040 13216337664
"""
TABLE_5 = {
    6: "6 1 10823464 2128750080\n5 2 17466472 3481790208",
    9: "9 1 12158056 2436032256\n8 2 18801064 3789072384",
}
STORED = {6: 47_829_776, 9: 70_872_656}  # all that a pool keeps, as the paper counts it
DEIT = "deit_base_patch16_224"


def rows(text: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, line.split())) for line in text.strip().splitlines()]


def family(blocks: int) -> dict[tuple[int, int], tuple[int, int]]:
    ancestry = find_architecture(DEIT)
    assert ancestry is not None
    members = PoolExpander().family(
        PoolExtractor(settings=PoolSettings(blocks=blocks)).outline([ancestry])
    )
    costs = {(m.settings["low"], m.settings["high"]): m.cost("fvcore") for m in members}
    assert len(costs) == len(members)
    return {path: (cost.params, cost.flops) for path, cost in costs.items()}


@pytest.mark.parametrize(("blocks", "table", "paths"), [(6, TABLE_1, 18), (9, TABLE_2, 27)])
def test_every_row_of_the_tables(blocks: int, table: str, paths: int) -> None:
    members = family(blocks)
    assert len(members) == paths
    for low, high, params, flops in rows(table + TABLE_5[blocks]):
        assert members[low, high] == (params, flops)


@pytest.mark.parametrize("blocks", [6, 9])
def test_tables_1_and_2_are_the_paths_of_so_many_layers(blocks: int) -> None:
    table = rows({6: TABLE_1, 9: TABLE_2}[blocks])
    assert {path for path in family(blocks) if sum(path) == blocks} == {row[:2] for row in table}


@pytest.mark.parametrize("blocks", [6, 9])
def test_what_a_pool_stores(blocks: int) -> None:
    """Both models and a stitch for every two neighbouring blocks; every number of the folder
    counts.
    """
    low, high = family(blocks)[blocks, 0], family(blocks)[0, blocks]
    assert low[0] + high[0] + (blocks - 1) * (192 * 768 + 768) == STORED[blocks]


def test_plan_says_so_on_the_command_line_without_torch(checkout: Path) -> None:
    """As typed. Whatever imports torch would fail."""
    block = (
        "import sys; sys.modules.update(torch=None, numpy=None, timm=None); from"
        " learngene_zoo.cli.main import main; "
    )
    command = [
        "plan",
        "pool",
        "--ancestry",
        f"timm:{DEIT}",
        "--blocks",
        "6",
        "--convention",
        "fvcore",
        "--json",
    ]
    path = {"PYTHONPATH": f"{checkout}:{checkout / 'plugins'}"}
    process = subprocess.run(
        [sys.executable, "-c", f"{block} sys.exit(main({command}))"],
        env=path,
        capture_output=True,
        text=True,
        check=True,
    )
    data = [
        tuple(row[name] for name in ("low", "high", "params", "flops"))
        for row in json.loads(process.stdout)
    ]
    assert set(rows(TABLE_1 + TABLE_5[6])) <= set(data)
    assert [row[2:] for row in data] == sorted(row[2:] for row in data)
