#!/usr/bin/env python3
"""Writes tests/unit/flow_cases.h: random divisions of demand, and their optimum by linear programming.

    /usr/bin/python3 tests/prop/flow_oracle.py > tests/unit/flow_cases.h

Each case is a list of (set of suppliers, demand). The optimum is the least M such that every demand can be
divided over its suppliers with no supplier above M; scipy's HiGHS finds it. Run by hand, the result is
committed: the tests need neither Python nor scipy.
"""
import math
import random

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix


def solve(groups):
    suppliers = sorted({s for mask, _ in groups for s in range(64) if mask >> s & 1})
    columns = [(g, s) for g, (mask, _) in enumerate(groups) for s in suppliers if mask >> s & 1]
    last = len(columns)
    objective = np.zeros(last + 1)
    objective[last] = 1
    equal = coo_matrix(
        (np.ones(last), ([g for g, _ in columns], range(last))), shape=(len(groups), last + 1)
    )
    rows = [suppliers.index(s) for _, s in columns] + list(range(len(suppliers)))
    below = coo_matrix(
        (
            np.concatenate([np.ones(last), -np.ones(len(suppliers))]),
            (rows, list(range(last)) + [last] * len(suppliers)),
        ),
        shape=(len(suppliers), last + 1),
    )
    result = linprog(
        objective,
        A_ub=below,
        b_ub=np.zeros(len(suppliers)),
        A_eq=equal,
        b_eq=[d for _, d in groups],
        method="highs",
    )
    assert result.status == 0, result.message
    return math.ceil(result.fun - 1e-6 * max(1.0, result.fun) ** 0.5)


def random_case(rng):
    count = rng.choice([2, 3, 5, 8, 17, 33, 64])
    groups = {}
    for _ in range(rng.randint(1, 2 * count)):
        kind = rng.random()
        if kind < 0.4:  # neighbours, as border heads make them
            first = rng.randrange(count)
            size = rng.randint(1, min(4, count - first))
            mask = ((1 << size) - 1) << first
        elif kind < 0.7:  # every k-th, as replicas are
            step = rng.randint(1, count)
            first = rng.randrange(step)
            mask = sum(1 << s for s in range(first, count, step)) or 1
        else:
            mask = sum(1 << s for s in range(count) if rng.random() < 0.3) or 1 << rng.randrange(count)
        groups[mask] = groups.get(mask, 0) + rng.choice([1, 7, 1000, rng.randint(1, 1000000)])
    return sorted(groups.items())


def main():
    rng = random.Random(7)
    print("/* Made by tests/prop/flow_oracle.py: demands, and the largest load of the best division. */")
    print("/* clang-format off */")
    print("static const flow_case cases[] = {")
    for _ in range(60):
        groups = random_case(rng)
        print("    {%d, %d, {" % (solve(groups), len(groups)))
        for i in range(0, len(groups), 3):
            print("        " + " ".join("{0x%xu, %d}," % group for group in groups[i : i + 3]))
        print("    }},")
    print("};")


main()
