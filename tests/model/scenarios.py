"""Contains the bounds of every scenario, the mutants that each run tries, and their expected outcomes."""

from append import Append
from crashed_replicas import CrashedReplicas
from decision_copies import DecisionCopies
from decisions import Decisions
from deleted_topics import DeletedTopics
from failing_directories import FailingDirectories
from follower_lags import FollowerLags
from groups import Groups
from growth import Growth
from handed_append import HandedAppend
from opening import Opening
from reassignment import Reassignment
from registrations import Registrations
from replica_cleaning import ReplicaCleaning
from replica_groups import ReplicaGroups
from replica_reads import ReplicaReads
from replica_repairs import ReplicaRepairs
from replica_retries import ReplicaRetries
from replica_settings import ReplicaSettings
from replica_transactions import ReplicaTransactions
from replica_unclean import ReplicaUnclean
from replicas import Replicas
from replicated_append import ReplicatedAppend
from set_members import SetMembers
from single_lock import SingleLock
from transactions import Transactions

MODELS = {
    "append": Append, "opening": Opening, "transactions": Transactions, "groups": Groups,
    "decisions": Decisions, "replicas": Replicas, "replicated_append": ReplicatedAppend, "single_lock": SingleLock,
    "handed_append": HandedAppend,
    "replica_reads": ReplicaReads, "replica_cleaning": ReplicaCleaning, "reassignment": Reassignment,
    "replica_settings": ReplicaSettings, "replica_unclean": ReplicaUnclean, "replica_transactions": ReplicaTransactions,
    "replica_groups": ReplicaGroups, "growth": Growth,
    "registrations": Registrations, "crashed_replicas": CrashedReplicas,
    "deleted_topics": DeletedTopics,
    "replica_retries": ReplicaRetries,
    "replica_repairs": ReplicaRepairs,
    "decision_copies": DecisionCopies,
    "follower_lags": FollowerLags,
    "failing_directories": FailingDirectories,
    "set_members": SetMembers,
}

ONE = ("ahd",)
TWO = ("ah", "d")                 # one process appends, one decides
BOTH = ("ahd", "d")               # both decide, one of them appends too
SLOW = ("ahd", "x")               # one deletes, at any time
WRITES = (("k", 1), ("k", None), ("j", 1))
LATER = (("k", 1), ("k", 2), ("k", None))

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
    "decisions": {
        "two directories": {"directories": 2, "voters": 0b11, "decisions": 2},
        "kill": {"processes": 1, "kills": 1, "decisions": 3},
        "power loss": {"processes": 1, "cuts": 1, "decisions": 3},
        "old copy": {"processes": 1, "restores": 1, "decisions": 3},
        "voters change": {"processes": 1, "voters": 0b011, "changes": (0b111, 0b110), "kills": 1, "decisions": 3},
        "directory fails": {"processes": 1, "fails": 1, "kills": 1, "decisions": 2},
        "voters replaced": {"processes": 1, "voters": 0b001, "changes": (0b110,), "fails": 1, "decisions": 3},
        "four decisions": {"processes": 1, "kills": 1, "decisions": 4},
        "two kills": {"processes": 1, "kills": 2, "decisions": 3},
    },
    "replicas": {
        "one of two replicas fails": {"roles": TWO, "replicas": 2, "records": 1, "fails": 2, "decisions": 3},
        "directory fails": {"roles": TWO, "records": 2, "fails": 1, "decisions": 3},
        "old copy": {"roles": TWO, "records": 1, "fails": 1, "copies": 1, "decisions": 2},
        "two deciders": {"roles": BOTH, "records": 1, "fails": 1, "decisions": 3},
        "kill": {"roles": BOTH, "records": 1, "fails": 1, "kills": 1, "decisions": 2},
        "power loss": {"roles": TWO, "records": 2, "cuts": 1, "decisions": 2},
        "power loss, directory fails": {"roles": TWO, "records": 1, "cuts": 1, "fails": 1, "decisions": 2},
        "the same, durable": {"roles": TWO, "records": 1, "cuts": 1, "fails": 1, "decisions": 2, "durable": True},
        "two replicas, old copy": {"roles": TWO, "replicas": 2, "records": 1, "fails": 2, "copies": 1, "decisions": 2},
        "two of three in sync needed": {"roles": TWO, "records": 1, "fails": 2, "decisions": 3, "least": 2},
        "two directories fail": {"roles": TWO, "records": 1, "fails": 2, "decisions": 3},
        "durable, growth, power loss": {
            "roles": ONE, "replicas": 2, "records": 1, "cuts": 1, "fails": 2, "decisions": 3, "durable": True,
            "script": ("D1 fails", "power loss", "D0 fails")},
        "durable, copy of another registration": {
            "roles": ONE, "replicas": 2, "records": 1, "cuts": 1, "copies": 1, "fails": 2, "decisions": 3, "durable": True,
            "script": ("copies D1", "power loss", "D1 fails", "restores", "D0 fails")},
    },
    "replicated_append": {
        "kill": {"kills": 1},
        "two elections": {"elections": 2},
        "three directories": {"directories": 3, "kills": 1, "elections": 2},
        "disk hangs": {"directories": 3, "elections": 0, "hangs": 1},
        "disk hangs, two records": {"records": 2, "elections": 0, "hangs": 1},
    },
    "handed_append": {
        "disk hangs": {"hangs": 1},
        "slow callers": {"slow": 2, "elections": 1},
        "disk hangs, election": {"hangs": 1, "elections": 1, "other": False},
    },
    "single_lock": {
        "one of two replicas fails": {"roles": TWO, "replicas": 2, "records": 1, "fails": 2, "decisions": 3},
        "directory fails": {"roles": TWO, "records": 1, "fails": 1, "decisions": 3},
        "two replicas, old copy": {"roles": TWO, "replicas": 2, "records": 1, "fails": 2, "copies": 1, "decisions": 2},
    },
    "replica_reads": {
        "three replicas": {"roles": TWO, "records": 1, "fails": 1, "decisions": 2},
        "two replicas": {"roles": TWO, "replicas": 2, "records": 2, "fails": 1, "decisions": 2},
        "two replicas, old copy": {"roles": TWO, "replicas": 2, "records": 1, "fails": 2, "copies": 1, "decisions": 2},
    },
    "replica_cleaning": {
        "log start": {"writes": WRITES, "deletes": 1, "leaves": 1},
        "log start, two of two in sync needed": {"writes": WRITES[:2], "deletes": 1, "leaves": 2, "elections": 2, "least": 2},
        "page created again": {"writes": WRITES, "cleans": 1, "leaves": 1, "rebuilds": 1},
        "cut within a compaction": {"writes": LATER, "cleans": 2, "leaves": 1, "swaps": True},
        "two of two in sync needed": {"writes": WRITES, "cleans": 2, "leaves": 1, "elections": 2, "least": 2},
        "followers compact": {"writes": (*LATER, ("j", 1)), "cleans": 3, "leaves": 1, "rebuilds": 1},
        "compaction": {"writes": WRITES, "cleans": 2, "leaves": 1, "rebuilds": 1, "elections": 2},
        "three replicas": {"replicas": 3, "writes": WRITES[:2], "cleans": 2, "leaves": 2},
    },
    "reassignment": {
        "there and back": {"roles": SLOW, "records": 1, "moves": (0b101, 0b011), "decisions": 5},
        "target replaced": {
            "roles": ONE, "replicas": 2, "members": 0b01, "records": 1, "fails": 1, "copies": 1, "moves": (0b10,), "decisions": 3,
            "script": ("copies D1", "D1 fails", "restores")},
        "two deciders": {"roles": ("ahd", "dx"), "records": 1, "moves": (0b101, 0b011), "decisions": 5},
        "directory fails": {"roles": SLOW, "records": 1, "fails": 1, "moves": (0b110,), "decisions": 4, "cancels": 1},
    },
    "replica_settings": {
        "directory restored": {
            "roles": TWO, "replicas": 2, "records": 1, "fails": 2, "copies": 1, "decisions": 3, "least": 2,
            "script": ("D1 fails", "copies D0", "D0 fails", "restores")},
        "two directories fail": {"roles": TWO, "replicas": 2, "records": 1, "fails": 2, "decisions": 3, "least": 2},
    },
    "replica_unclean": {
        "written alone": {"fails": 2, "alone": 1},
        "put back": {"fails": 2, "copies": 1},
        "both put back": {"records": 1, "fails": 3, "copies": 2},
        "three replicas": {"replicas": 3, "records": 1, "fails": 2, "copies": 1},
        "put back, written alone": {"fails": 2, "copies": 1, "alone": 1},
    },
    "replica_transactions": {
        "failover": {"txns": 1, "producers": 1},
        "two failovers": {"txns": 1, "producers": 1, "failovers": 2},
        "two transactions": {"txns": 2, "producers": 1},
        "two producers": {"txns": 1, "producers": 2},
        "two transactions, two producers": {"txns": 2, "producers": 2},
    },
    "replica_groups": {
        "failover": {},
        "two failovers": {"failovers": 2},
        "failover and kill": {"kills": 1},
    },
    "growth": {
        "kill": {},
        "two kills": {"kills": 2, "records": 3},
        "decisions of an earlier set": {"earlier": True},
        "three processes": {"processes": 3, "kills": 2, "records": 3},
    },
    "crashed_replicas": {
        "kill": {"processes": 1, "kills": 1},
        "kills": {},
        "power loss": {"cuts": 1},
        "copy": {"processes": 1, "kills": 2, "copies": 1},
        "kills and power losses": {"kills": 3, "cuts": 2, "openings": 4},
    },
    "registrations": {
        "one process, kill": {"processes": 1, "kills": 1, "opens": 3},
        "two openers": {"kills": 0, "opens": 2},
        "a directory fails": {"processes": 1, "kills": 0, "opens": 2, "fails": 1, "changes": 2},
        "two openers and kill": {"kills": 1, "opens": 2, "looks": 0},
        "two openers, then another one": {"kills": 0, "opens": 3, "looks": 0},
        "a directory is replaced": {"processes": 1, "kills": 1, "opens": 3, "looks": 0, "copies": 0, "fails": 2, "replaces": 1,
                                    "changes": 1},
        "a stranger is replaced beside another process": {"kills": 1, "opens": 2, "looks": 0, "replaces": 1},
    },
    "deleted_topics": {
        "no fault": {"kills": 0, "fails": 0},
        "nothing is created": {"creates": 0},
        "kill, directory fails": {},
        "created twice": {"directories": 1, "creates": 2, "deletes": 2},
    },
    "replica_retries": {
        "failovers": {},
        "three replicas": {"replicas": 3, "deletes": 0, "leaves": 0},
        "no sequences": {"sequences": False, "compactions": 1, "deletes": 0},
        "two records, compaction": {"records": 2, "compactions": 1},
        "no sequences, log start": {"sequences": False, "compactions": 1, "others": 2},
    },
    "replica_repairs": {
        "one record": {},
        "two of two in sync needed": {"least": 2, "fails": 1},
        "two records, both damaged": {"records": 1, "rots": 2},
        "kill": {"records": 1, "kills": 1},
        "three replicas": {"replicas": 3, "processes": 1, "rots": 2, "fails": 1, "least": 2},
    },
    "decision_copies": {
        "stranger": {"strangers": 1, "decisions": 3},
        "two planned directories": {"planned": True, "changes": (0b111,), "decisions": 3},
        "kill": {"kills": 1, "decisions": 2},
        "copy begins again": {"kills": 1, "renewals": 1, "decisions": 2},
        "copy begins again, directory fails": {"renewals": 1, "fails": 1, "decisions": 3},
        "stranger, kill": {"strangers": 1, "kills": 1, "decisions": 3},
        "copy begins again, three decisions": {"kills": 1, "renewals": 1, "decisions": 3},
    },
    "follower_lags": {
        "one process": {"processes": 1},
        "two processes": {},
    },
    "failing_directories": {
        "disk stays away": {"breaks": 1, "returns": False},
        "process without descriptors": {"breaks": 1, "starves": 1},
        "process stops with a lock": {"stops": 1},
        "kill": {"kills": 1},
        "two failures": {"breaks": 2},
        "everything": {"breaks": 1, "starves": 1, "stops": 1, "kills": 1, "records": 2},
    },
    "set_members": {
        "two forced retirements": {"new": 0, "kills": 0},
        "growth": {"forces": False},
        "copies": {"members": 3, "new": 0, "copies": 2, "kills": 0},
        "two processes": {"new": 0, "processes": 2},
        "two processes, growth": {"processes": 2, "forces": False, "kills": 0},
        "growth and forced retirements": {"decisions": 3, "opens": 4, "kills": 2},
        "three members": {"members": 3, "forces": False, "decisions": 3},
        "two pairs": {"members": 4, "new": 0, "kills": 0, "retires": False},
        "two pairs, kill": {"members": 4, "new": 0, "decisions": 3},
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
    "decisions": {
        "three kills": {"processes": 1, "kills": 3, "decisions": 4},
        "old copy and kills": {"processes": 1, "restores": 1, "kills": 2, "fails": 1, "decisions": 3},
    },
    "replicas": {
        "two deciders, two failures": {"roles": BOTH, "records": 1, "fails": 2, "decisions": 2},
        "two deciders, two records": {"roles": BOTH, "records": 2, "fails": 1, "decisions": 3},
        "two deciders, two needed": {"roles": BOTH, "records": 1, "fails": 2, "decisions": 3, "least": 2},
        "old copy, two failures": {"roles": TWO, "records": 1, "fails": 2, "copies": 1, "decisions": 3},
        "old copy, power loss": {"roles": TWO, "records": 1, "cuts": 1, "copies": 1, "fails": 1, "decisions": 2},
        "durable, power loss, old copy": {
            "roles": ONE, "replicas": 2, "records": 1, "cuts": 1, "copies": 1, "fails": 2, "decisions": 3, "durable": True},
        "durable, two records": {"roles": TWO, "records": 2, "cuts": 1, "decisions": 2, "durable": True},
        "kills, two failures": {"roles": BOTH, "records": 1, "fails": 2, "kills": 1, "decisions": 2},
    },
    "replicated_append": {
        "three processes": {"directories": 3, "processes": 3},
        "two records": {"records": 2, "elections": 2},
        "disk hangs, election": {"directories": 3, "elections": 1, "hangs": 1},
    },
    "handed_append": {
        "disk hangs, two elections": {"hangs": 1, "slow": 1, "elections": 2, "other": False},
    },
    "single_lock": {
        "two deciders": {"roles": BOTH, "records": 1, "fails": 1, "decisions": 3},
        "two needed": {"roles": TWO, "records": 1, "fails": 2, "decisions": 3, "least": 2},
    },
    "replica_reads": {
        "three replicas, two records": {"roles": TWO, "records": 2, "fails": 1, "decisions": 3},
    },
    "replica_cleaning": {
        "two elections": {"writes": WRITES, "deletes": 2, "leaves": 2, "elections": 2},
        "three replicas, two elections": {"replicas": 3, "writes": WRITES[:2], "cleans": 2, "leaves": 2, "elections": 2},
    },
    "reassignment": {
        "there and back, directory fails": {"roles": SLOW, "records": 1, "fails": 1, "moves": (0b101, 0b011), "decisions": 5},
    },
    "replica_settings": {
        "three replicas": {"roles": TWO, "records": 1, "fails": 2, "decisions": 3, "least": 2},
    },
    "replica_unclean": {
        "three replicas, put back, written alone": {"replicas": 3, "records": 1, "fails": 3, "copies": 1, "alone": 1},
    },
    "replica_transactions": {
        "two failovers, two transactions": {"txns": 2, "producers": 1, "failovers": 2},
    },
    "replica_groups": {
        "two failovers and kill": {"failovers": 2, "kills": 1},
    },
    "growth": {
        "three processes, four records": {"processes": 3, "kills": 3, "records": 4, "earlier": True},
    },
    "crashed_replicas": {
        "three processes": {"processes": 3, "kills": 3, "cuts": 2, "copies": 1, "openings": 4},
    },
    "registrations": {
        "two openers, kill, then another one": {"kills": 1, "opens": 3, "looks": 0},
        "three openers": {"processes": 3, "kills": 0, "opens": 3, "looks": 0},
    },
    "deleted_topics": {
        "three processes": {"processes": 3, "directories": 1, "creates": 2, "deletes": 2, "kills": 0, "fails": 0},
    },
    "replica_retries": {
        "three replicas, log start": {"replicas": 3, "records": 2, "compactions": 1},
    },
    "replica_repairs": {
        "everything": {"records": 1, "kills": 1, "rots": 2, "fails": 1},
        "three replicas, two processes": {"replicas": 3, "records": 1, "rots": 1, "fails": 1, "decisions": 4},
    },
    "decision_copies": {
        "stranger, copy begins again": {"strangers": 1, "renewals": 1, "kills": 1, "decisions": 3},
    },
    "follower_lags": {
        "three processes": {"processes": 3},
    },
    "failing_directories": {
        "three processes": {"processes": 3, "breaks": 1, "starves": 1, "kills": 1},
    },
    "set_members": {
        "two processes, two new ones": {"processes": 2, "new": 2, "forces": False, "decisions": 3},
    },
}

# Small enough for every test run; the mutants in NEEDS_MORE show only in larger ones.
FAST = {
    "append": ("bad sector", "kills"),
    "opening": ("kill", "power loss"),
    "transactions": ("kill", "power loss", "producer state expires"),
    "groups": ("duplicates", "static member", "kill", "sleeper", "frozen"),
    "decisions": ("two directories", "kill", "power loss", "voters replaced"),
    "replicas": ("one of two replicas fails", "directory fails", "durable, growth, power loss"),
    "replicated_append": ("kill", "disk hangs"),
    "handed_append": ("disk hangs", "slow callers", "disk hangs, election"),
    "single_lock": ("one of two replicas fails",),
    "replica_reads": ("three replicas",),
    "replica_cleaning": ("log start", "page created again", "cut within a compaction", "two of two in sync needed",
                         "log start, two of two in sync needed"),
    "reassignment": ("there and back", "target replaced"),
    "replica_settings": ("directory restored",),
    "replica_unclean": ("written alone", "put back"),
    "replica_transactions": ("failover",),
    "replica_groups": ("failover",),
    "growth": ("kill", "decisions of an earlier set"),
    "registrations": ("one process, kill", "two openers"),
    "crashed_replicas": ("kill", "kills", "power loss", "copy"),
    "deleted_topics": ("no fault", "nothing is created"),
    "replica_retries": ("failovers", "three replicas", "no sequences"),
    "replica_repairs": ("one record", "two of two in sync needed"),
    "decision_copies": ("stranger", "two planned directories", "kill", "copy begins again"),
    "follower_lags": ("one process",),
    "failing_directories": ("disk stays away", "process without descriptors", "process stops with a lock", "kill",
                            "two failures"),
    "set_members": ("two forced retirements", "growth", "copies", "two processes", "two pairs"),
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
    ("replicated_append", "leaf"): "a disk that hangs, and two records",
    ("replicated_append", "fence"): "a disk that hangs, and two records",
    ("transactions", "first_not_preparing"): "two transactions",
    ("transactions", "init_fences"): "two transactions",
    ("transactions", "skip_as_high"): "two transactions",
    ("transactions", "same_prepare"): "two transactions",
    ("transactions", "sweep_by_epoch"): "two transactions",
    ("transactions", "sweep_ends"): "two transactions",
} | {
    ("groups", rule): "a clock" for rule in ("beats_reread", "own_lease", "gap_noticed", "round_checked")
} | {
    ("decisions", "truncate"): "four decisions",
    ("decisions", "own_term"): "two kills",
} | {
    ("replicas", "births"): "an old copy",
    ("replicas", "grow_start"): "an old copy",
    ("replicas", "lost_leaves"): "an old copy",
    ("replicas", "grow_current"): "two deciders",
    ("replicas", "compare"): "two deciders",
    ("replicas", "newer_only"): "two deciders",
    ("single_lock", "grow_locked"): "an old copy",
    ("replica_groups", "assign_committed"): "a kill",
    ("replica_unclean", "foreign_noted"): "put back and written alone",
    ("replica_unclean", "trusted_first"): "put back and written alone",
    ("replica_unclean", "foreign_all"): "both put back",
    ("replica_repairs", "source_checked"): "two records, both damaged",
}

# Mutants that only the largest default scenario shows; the others skip it to save time.
ONLY_IN_LARGEST = {("append", "sync_intent"), ("append", "fresh_rewrite"), ("append", "intent_poisons")}

# The scenario that shows a mutant; the others skip it to save time. --deep tries all of them.
SHOWN_BY = {
    ("replicas", "births"): "two replicas, old copy",
    ("replicas", "one_section"): "two replicas, old copy",
    ("replicas", "grow_registration"): "two replicas, old copy",
    ("replicas", "same_page"): "two replicas, old copy",
    ("replicas", "enough"): "two of three in sync needed",
    ("replicas", "enough_decided"): "two of three in sync needed",
    ("replicas", "wait_for_all"): "power loss, directory fails",
    ("replicas", "durable_created"): "power loss, directory fails",
    ("replicas", "lost_incomplete"): "power loss, directory fails",
    ("replicas", "longest"): "power loss",
    ("replicas", "synced_by_all"): "the same, durable",
    ("replicas", "grow_synced"): "durable, growth, power loss",
    ("replicas", "registrations"): "durable, copy of another registration",
    ("replica_groups", "assign_committed"): "failover and kill",
    ("replica_cleaning", "purged_lowered"): "three replicas",
    ("replica_cleaning", "swap_of_follower"): "followers compact",
    ("replica_transactions", "init_committed"): "two transactions, two producers",
    ("registrations", "every_process"): "two openers, then another one",
}

# Rules whose removal alone breaks nothing within these bounds, and why.
NOT_NEEDED_ALONE = {
    ("append", "roll_intent"): "the owner field already makes the successor list the directory",
    ("append", "sync_lock"): "without it a second sync takes the first intent for that of a dead process: rewrites, no loss",
    ("append", "open_then_compare"): "the intent of a dead process covers it; needed where no intent is kept",
    ("append", "poison_file"): "opening with published > durable rewrites anyway",
    ("append", "poison_roll"): "every sync of a poisoned segment rewrites; rolling is for bad sectors and full devices",
    ("transactions", "partition_fence"): "covered by the two rules on first and later batches",
    ("transactions", "every_partition"): "with registration and first batch under one lock, a listed partition has data",
    ("replicated_append", "epoch_again"): "a follower of a later leader is in another epoch, and does not count as a member",
    ("replicated_append", "look"): "the epochs are compared again under the lock",
    ("replicated_append", "recover"): "no follower has a batch that the leader has not published",
    ("replica_reads", "isr_member"): "a replica outside the ISR returns an older prefix, or is out of range: the leader is asked",
    ("replica_reads", "leader_epoch"): "a page of an older epoch has a lower high watermark: an older prefix of the same records",
    ("replica_reads", "ask_leader"): "an ISR member has every position of a reader; needed where the reader knows an older ISR",
    ("registrations", "judged_again"): "no directory is replaced between the look and the decision while a process is in it",
    ("registrations", "replaced_silent"): "a process registers the others before it replaces one: they have all decisions",
    ("set_members", "last_generation"): "parts that decided without each other have each retired a member of the other one",
    ("set_members", "followed"): "of two members the later one names the other: only a retired one with its file needs it",
    ("follower_lags", "begins_again"): "a follower joins with what the leader had at the look that took it out",
    ("reassignment", "assigned_join"): "a removed replica does not follow, so it never reaches the raised epoch",
}
PAIRS = [
    ("append", ("owner_word", "roll_intent")),
    ("append", ("sync_intent", "open_then_compare")),
    ("transactions", ("partition_fence", "first_under_both")),
    ("transactions", ("partition_fence", "later_open")),
    ("transactions", ("every_partition", "first_under_both")),
    ("replicated_append", ("publish_first", "recover")),
    ("replica_reads", ("isr_member", "ask_leader")),
    ("reassignment", ("assigned_join", "finish_raises")),
    ("replica_repairs", ("leaves_elr", "left_checked")),
    ("set_members", ("last_generation", "retired_by_each")),
]
