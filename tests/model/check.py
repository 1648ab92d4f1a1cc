"""Check the models: nothing breaks with every rule on, something breaks with each rule off.

    python3 check.py            default bounds, a few minutes on two cores
    python3 check.py --fast     small scenarios and the mutants that they show, seconds
    python3 check.py --deep     larger bounds; every mutant in every default scenario
    python3 check.py --piece 0/12                  every twelfth job, from the first one on
    python3 check.py --write    the default run, then refresh README.md and RESULTS.md
    python3 check.py --trace append.owner_word     one mutant's counterexample

Exit status 1 if the rules have a hole, or if a mutant that should be found is not.
"""

import sys
import time
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

from append import Append
from engine import explore
from groups import Groups
from opening import Opening
from transactions import Transactions

MODELS = {"append": Append, "opening": Opening, "transactions": Transactions, "groups": Groups}
HERE = Path(__file__).parent
LIMIT = {False: 1_000_000, True: 4_000_000}

# Bounds, smallest first: a mutant is tried in this order and stops at its first violation.
SCENARIOS = {
    "append": {
        "bad sector": {"processes": 1, "records": 2, "kills": 0, "cuts": 1, "rots": 1},
        "kills": {"records": 3, "kills": 2, "cuts": 0, "syncs": False},
        "failed sync": {"records": 2, "kills": 0, "cuts": 1, "fails": 1},
        "two power losses": {"processes": 1, "records": 4, "kills": 0, "cuts": 2},
        "power loss": {"records": 2, "kills": 1, "cuts": 1, "writebacks": 1},
        "failed sync and kill": {"records": 2, "kills": 1, "cuts": 1, "fails": 1},
    },
    "opening": {
        "kill": {"kills": 1},
        "page deleted": {"deletions": 1},
        "broker": {"visits": 2},
        "power loss": {"cuts": 1},
        "page deleted and kill": {"deletions": 1, "kills": 1},
        "broker and kill": {"visits": 1, "kills": 1},
    },
    "transactions": {
        "kill": {"txns": 1, "kills": 1},
        "power loss": {"txns": 1, "cuts": 1, "helpers": 0, "producers": 1},
        "producer state expires": {"txns": 1, "expiries": 1},
        "power loss, two transactions": {"txns": 2, "cuts": 1, "producers": 1},
        "two transactions": {"txns": 2},
        "kill, two transactions": {"txns": 2, "kills": 1, "helpers": 0},
    },
    "groups": {
        "duplicates": {"static": True, "duplicates": True},
        "static member": {"kills": 1, "static": True},
        "kill": {"kills": 1},
        "sleeper": {"freezes": 1, "records": 2},
        "frozen": {"stops": 1},
        "clock": {"expiries": 1},
        "rounds": {"lates": 1, "kills": 1},
    },
}
DEEP = {
    "append": {
        "three processes": {"processes": 3, "records": 1, "kills": 1, "cuts": 1, "fails": 1},
        "two failures, two kills": {"records": 1, "kills": 2, "cuts": 1, "fails": 2},
        "failed sync, two kills": {"records": 2, "kills": 2, "cuts": 1, "fails": 1},
    },
    "opening": {
        "everything": {"kills": 1, "cuts": 1, "visits": 1, "deletions": 1},
        "three processes": {"processes": 3, "kills": 1, "deletions": 1},
    },
    "transactions": {
        "two power losses": {"txns": 2, "cuts": 2, "producers": 1},
        "expiry, two transactions": {"txns": 2, "expiries": 1},
        "power loss, two producers": {"txns": 2, "cuts": 1},
    },
    "groups": {
        "two kills": {"kills": 2},
        "two sleepers": {"freezes": 2, "records": 2},
        "sleeper and kill": {"freezes": 1, "kills": 1},
    },
}

# Small enough for every test run; the mutants in NEEDS_MORE show only in larger ones.
FAST = {
    "append": ("bad sector", "kills"),
    "opening": ("kill", "power loss"),
    "transactions": ("kill", "power loss", "producer state expires"),
    "groups": ("duplicates", "static member", "kill", "sleeper", "frozen"),
}
NEEDS_MORE = {
    ("append", rule): "a failed sync or two power losses"
    for rule in ("adopt", "epoch_check", "epoch_synced", "fresh_rewrite", "intent_poisons", "poison", "poison_rewrite",
                 "sync_intent")
} | {
    ("opening", "identity"): "a deleted page",
    ("opening", "made_under_lock"): "a deleted page",
    ("opening", "lock_apart"): "a deleted page",
    ("opening", "stat_again"): "a broker",
    ("opening", "settle"): "a broker",
    ("transactions", "first_not_preparing"): "two transactions",
    ("transactions", "init_fences"): "two transactions",
    ("transactions", "skip_as_high"): "two transactions",
    ("transactions", "same_prepare"): "two transactions",
    ("transactions", "sweep_by_epoch"): "two transactions",
    ("transactions", "sweep_ends"): "two transactions",
} | {
    ("groups", rule): "a clock" for rule in ("beats_reread", "own_lease", "gap_noticed", "round_checked")
}

# Mutants that only the largest default scenario shows; the others skip it to save time.
ONLY_IN_LARGEST = {("append", "sync_intent"), ("append", "fresh_rewrite"), ("append", "intent_poisons")}

# Rules whose removal alone breaks nothing within these bounds, and why.
NOT_NEEDED_ALONE = {
    ("append", "roll_intent"): "the owner field already makes the successor list the directory",
    ("append", "sync_lock"): "without it a second sync takes the first intent for that of a dead process: rewrites, no loss",
    ("append", "open_then_compare"): "the intent of a dead process covers it; needed where no intent is kept",
    ("append", "poison_file"): "opening with published > durable rewrites anyway",
    ("append", "poison_roll"): "every sync of a poisoned segment rewrites; rolling is for bad sectors and full devices",
    ("transactions", "partition_fence"): "covered by the two rules on first and later batches",
    ("transactions", "every_partition"): "with registration and first batch under one lock, a listed partition has data",
}
PAIRS = [
    ("append", ("owner_word", "roll_intent")),
    ("append", ("sync_intent", "open_then_compare")),
    ("transactions", ("partition_fence", "first_under_both")),
    ("transactions", ("partition_fence", "later_open")),
    ("transactions", ("every_partition", "first_under_both")),
]


class Job(NamedTuple):
    model: str
    off: tuple
    scenarios: tuple          # names, tried in this order
    limit: int


class Outcome(NamedTuple):
    job: Job
    scenario: str             # where the violation is, or the last one tried
    states: int               # of that scenario, or of all of them if nothing broke
    depth: int
    complete: bool
    problem: str
    trace: tuple
    seconds: float


def run(job):
    began, states, complete, depth = time.time(), 0, True, 0
    known = SCENARIOS[job.model] | DEEP[job.model]
    for scenario in job.scenarios:
        result = explore(MODELS[job.model](off=job.off, **known[scenario]), job.limit)
        states, complete = states + result.states, complete and result.complete
        depth = max(depth, result.depth)
        if result.problem:
            return Outcome(job, scenario, result.states, result.depth, True, result.problem,
                           result.trace, time.time() - began)
    return Outcome(job, scenario, states, depth, complete, "", (), time.time() - began)


def fast_jobs():
    """The part that fits into seconds: each small scenario complete, and each mutant that one of them shows."""
    for model, names in FAST.items():
        for scenario in names:
            yield Job(model, (), (scenario,), LIMIT[False])
        for rule in MODELS[model].rules:
            if (model, rule) not in NOT_NEEDED_ALONE | NEEDS_MORE:
                yield Job(model, (rule,), names, LIMIT[False])


def jobs(deep):
    """All rules on, one job per scenario; then one job per mutant and per pair."""
    for model in MODELS:
        names = list(SCENARIOS[model]) + (list(DEEP[model]) if deep else [])
        for scenario in reversed(names):                     # the long ones first
            yield Job(model, (), (scenario,), LIMIT[deep])
    for model, kind in MODELS.items():
        for rule in kind.rules:
            yield Job(model, (rule,), mutant_scenarios(model, rule, deep), LIMIT[deep])
    for model, pair in PAIRS:
        yield Job(model, pair, tuple(SCENARIOS[model]), LIMIT[deep])


def mutant_scenarios(model, rule, deep):
    names = tuple(SCENARIOS[model])
    if deep or model != "append":
        return names
    if (model, rule) in ONLY_IN_LARGEST:
        return names[-1:]
    return names[:-2] if (model, rule) in NOT_NEEDED_ALONE else names[:-1]


def bounds(model, scenario):
    known = SCENARIOS[model] | DEEP[model]
    return ", ".join(f"{word} {value}" for word, value in known[scenario].items())


def wrong(outcome):
    """Does this outcome contradict what the tables above claim?"""
    model, off = outcome.job.model, outcome.job.off
    if not off:
        return bool(outcome.problem)
    expected = len(off) > 1 or (model, off[0]) not in NOT_NEEDED_ALONE
    return expected != bool(outcome.problem)


def report(outcome):
    model, off = outcome.job.model, " + ".join(outcome.job.off) or "all rules on"
    found = outcome.problem or "no violation"
    steps = f", {len(outcome.trace)} steps" if outcome.trace else ""
    partly = "" if outcome.complete else " (stopped at the limit)"
    flag = "WRONG " if wrong(outcome) else ""
    print(f"{flag}{model}: {off}: {found}{steps} [{outcome.scenario}; {outcome.states} states{partly}, "
          f"{outcome.seconds:.1f} s]", flush=True)
    if wrong(outcome):
        print(*("    " + step for step in outcome.trace), sep="\n")


def write_documents(outcomes):
    readme = HERE / "README.md"
    head = readme.read_text().split("<!-- generated -->")[0]
    readme.write_text(head + "<!-- generated -->\n\n" + tables(outcomes))
    traces = [f"## {o.job.model}: without {' + '.join(o.job.off)}\n\n{o.problem} "
              f"({bounds(o.job.model, o.scenario)})\n\n"
              + "".join(f"{n}. {step}\n" for n, step in enumerate(o.trace, 1))
              for o in outcomes if o.trace]
    (HERE / "RESULTS.md").write_text("# Shortest counterexamples (written by `check.py --write`)\n\n" + "\n".join(traces))


def tables(outcomes):
    alone = [o for o in outcomes if len(o.job.off) == 1]
    sections = [
        ("All rules on: no violation", ("model", "scenario", "bounds", "states", "longest path"),
         [(o.job.model, o.scenario, bounds(o.job.model, o.scenario), f"{o.states:,}", o.depth)
          for o in outcomes if not o.job.off]),
        ("One rule off: what breaks", ("model", "rule", "switch", "asks", "breaks", "steps", "scenario"),
         [(o.job.model, *described(o), o.problem, len(o.trace), o.scenario) for o in alone if o.problem]),
        ("Two rules off", ("model", "switches", "breaks", "steps"),
         [(o.job.model, " + ".join(o.job.off), o.problem, len(o.trace)) for o in outcomes if len(o.job.off) > 1]),
        ("Not needed alone within these bounds", ("model", "rule", "switch", "asks", "why", "states"),
         [(o.job.model, *described(o), NOT_NEEDED_ALONE.get((o.job.model, o.job.off[0]), "unexplained"), f"{o.states:,}")
          for o in alone if not o.problem]),
    ]
    return "\n".join(table(*section) for section in sections)


def described(outcome):
    """Rule, switch and wording of a mutant with one rule off."""
    switch, = outcome.job.off
    rule, asks = MODELS[outcome.job.model].rules[switch]
    return rule, f"`{switch}`", asks


def table(title, columns, rows):
    counts = {"states", "steps", "longest path"}
    rule = "|".join("---:" if column in counts else "---" for column in columns)
    lines = [f"## {title}", "", f"| {' | '.join(columns)} |", f"|{rule}|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def main(arguments):
    deep = "--deep" in arguments
    if "--trace" in arguments:
        model, rule = arguments[arguments.index("--trace") + 1].split(".")
        outcome = run(Job(model, (rule,), tuple(SCENARIOS[model]), LIMIT[True]))
        print(outcome.problem or "no violation", *("  " + step for step in outcome.trace), sep="\n")
        return 0
    began, outcomes = time.time(), []
    piece, pieces = 0, 1
    if "--piece" in arguments:
        piece, pieces = map(int, arguments[arguments.index("--piece") + 1].split("/"))
    with Pool(2 if pieces == 1 else 1) as pool:
        chosen = list(fast_jobs() if "--fast" in arguments else jobs(deep))[piece::pieces]
        for outcome in pool.imap(run, chosen, chunksize=1):
            outcomes.append(outcome)
            report(outcome)
    print(f"{sum(o.states for o in outcomes):,} states, {time.time() - began:.0f} s, "
          f"{sum(map(wrong, outcomes))} surprises")
    if "--write" in arguments:
        write_documents(outcomes)
    return int(any(map(wrong, outcomes)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
