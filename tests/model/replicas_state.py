"""Defines the state of the model of replicas: directories, decisions, processes, and the switches."""

from typing import NamedTuple

NONE = -1             # the epoch in a new control page: the replica neither leads nor follows

# switch -> (rule id, what the rule asks for)
RULES = {
    "fence": ("REPLICA-1", "a replica takes nothing from a leader of a lower epoch than its page contains"),
    "truncate_first": ("REPLICA-2", "before a replica copies from a new leader, it truncates what that leader does not have"),
    "truncate_by_epoch": ("REPLICA-2", "it truncates where the leader epochs diverge, not at its high watermark"),
    "all_in_sync": ("REPLICA-3", "the high watermark is the least log end of the maximal ISR"),
    "same_epoch": ("REPLICA-3", "a log end counts only if that page is in the leader's epoch"),
    "one_section": ("REPLICA-3+", "log ends are read and the high watermark is stored under one hold of the leader's lock"),
    "enough": ("REPLICA-4", "the high watermark does not move while the ISR is smaller than min.insync.replicas"),
    "enough_decided": ("REPLICA-4+", "... and the decided ISR counts, not the maximal one: while it is small the ELR may lead"),
    "ack_at_high": ("REPLICA-4", "acks=all is answered from the high watermark"),
    "shrink_decided": ("REPLICA-5", "a smaller ISR counts only after it was decided"),
    "grow_page": ("REPLICA-6", "a larger ISR counts before it is decided"),
    "grow_high": ("REPLICA-6", "a joining replica has everything below the high watermark"),
    "grow_start": ("REPLICA-6", "a joining replica has everything below the start of the leader's epoch"),
    "grow_current": ("REPLICA-6+", "it joins only a page with the newest decision: installing that one would remove it again"),
    "grow_registration": ("REPLICA-6+", "its growth is decided only if the replica was not replaced since it was measured"),
    "compare": ("REPLICA-7", "a decision names the partition epoch that it was derived from"),
    "raise_epoch": ("REPLICA-8", "every election raises the leader epoch"),
    "from_isr": ("REPLICA-8", "only a member of the ISR (or of the ELR, if the ISR has none) is elected"),
    "newer_only": ("REPLICA-9", "a decision is installed only over an older one"),
    "same_page": ("REPLICA-9+", "... and only in the page in which that leader was elected"),
    "show_from_start": ("REPLICA-10", "a leader returns nothing until its high watermark has reached the start of its epoch"),
    "lost_incomplete": ("REPLICA-11", "a replica whose page was lost is not complete"),
    "lost_leaves": ("REPLICA-11", "such a replica leaves ISR and ELR by a decision before it follows"),
    "registrations": ("REPLICA-12", "a directory with another registration id than the decided one is foreign"),
    "births": ("REPLICA-12+", "a directory whose lock file has another birth time than the recorded one is a copy: foreign"),
    "wait_for_all": ("REPLICA-13", "after a power loss an election waits for all members, unless the topic is durable"),
    "durable_created": ("REPLICA-13+", "... since its creation: a later setting covers no earlier records, and no slow process"),
    "longest": ("REPLICA-13", "after a power loss the most complete log leads"),
    "synced_by_all": ("REPLICA-14", "a durable acknowledgement waits for the sync of every member of the maximal ISR"),
    "grow_synced": ("REPLICA-14+", "a replica that joins the ISR of a durable topic has synced everything that it must have"),
}


class Directory(NamedTuple):
    """One replica: its log and the fields of its control page."""

    log: tuple = ()          # (epoch, record)
    epoch: int = 0           # of the page
    leads: bool = False
    maximal: int = 0         # the maximal ISR in a leader's page: a bit for each directory
    installed: int = 0       # the ISR of the installed decision
    version: int = 0         # partition epoch of the installed decision
    start: int = 0           # log end at which the leader's epoch began
    high: int = 0
    synced: int = 0
    registration: int = 0    # the registration id in the directory
    page: int = 0            # number of the control page: a lost page is created again
    loss: str = ""           # how the page was lost: "power", "copy"


class Decided(NamedTuple):
    """The newest decision."""

    epoch: int
    version: int
    leader: int
    isr: int
    elr: int
    registered: tuple
    page: int = 0            # of the leader's page at its election: the registration id that the decision names


class Process(NamedTuple):
    reaches: int             # directories that do not fail for this process
    send: tuple = ()         # (directory, epoch, offset, record) without an acknowledgement
    job: tuple = ()          # a decision or an installation in progress


class State(NamedTuple):
    directories: tuple
    decided: Decided
    processes: tuple
    record: int = 1
    acked: frozenset = frozenset()       # (offset, record)
    seen: tuple = ()                     # the longest prefix that any leader has returned
    seen_before: tuple = ()              # the same before a power loss
    boots: int = 0
    copy: tuple = ()                     # (directory, log, registration, boot): an old copy that an operator keeps
    kills: int = 0
    fails: int = 0
    cuts: int = 0
    copies: int = 0
    decisions: int = 0                   # that may still be made
    scripted: int = 0                    # faults of the script that have happened
    more: tuple = ()                     # of a model that extends this one


def name(me):
    return "ABC"[me]


def has(mask, n):
    return mask >> n & 1


def show(mask):
    return "{" + ",".join(f"D{n}" for n in range(8) if has(mask, n)) + "}"


def become(state, me, process):
    return state._replace(processes=state.processes[:me] + (process,) + state.processes[me + 1:])


def put(state, n, directory):
    return state._replace(directories=state.directories[:n] + (directory,) + state.directories[n + 1:])


def best(state, among):
    """The most complete log: largest last epoch, then longest, then first in the assignment."""
    def rank(n):
        log = state.directories[n].log
        return (log[-1][0] if log else NONE, len(log), -n)
    return max(among, key=rank)


def agreed(mine, leader):
    """Where a follower truncates: it asks for the end of its last epoch until both logs know the epoch."""
    while mine:
        epoch = mine[-1][0]
        known = max((e for e, _ in leader if e <= epoch), default=None)
        if known is None:
            return 0
        end = sum(e <= epoch for e, _ in leader)
        own = sum(e <= known for e, _ in mine)
        mine = mine[:min(end, own)]
        if known == epoch:
            break
    return len(mine)
