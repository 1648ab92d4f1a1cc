"""Models the faults of replicas: kills, failing directories, restored copies, power losses."""

from itertools import product

from replicas_state import NONE, Directory, Process, become, best, has, name, put


class Faults:
    """The faults; a subclass adds the rules."""

    def _faults(self, state):
        if state.kills:
            for me, p in enumerate(state.processes):
                if p.job or p.send:
                    after = become(state, me, Process(p.reaches))
                    yield f"!{name(me)} is killed", after._replace(kills=state.kills - 1)
        if state.fails:
            yield from self._failures(state)
        if state.copies:
            for n, d in enumerate(state.directories):
                if not state.copy and d.epoch != NONE:
                    yield f"!an operator copies D{n}", state._replace(copy=(n, d.log, d.registration, state.boots))
            if state.copy:
                yield from self._restores(state)
        if state.cuts:
            yield from self._power_losses(state)

    def _failures(self, state):
        for n in range(len(state.directories)):      # a failed witness only prevents decisions
            reaching = [me for me, p in enumerate(state.processes) if has(p.reaches, n)]
            for me in reaching:
                yield f"!D{n} fails for {name(me)}", self._unreached(state, [me], n)
            if len(reaching) > 1:
                yield f"!D{n} fails for all", self._unreached(state, reaching, n)

    def _unreached(self, state, processes, n):
        for me in processes:
            p = state.processes[me]
            state = become(state, me, p._replace(reaches=p.reaches & ~(1 << n)))
        return state._replace(fails=state.fails - 1)

    def _restores(self, state):
        n, log, registration, boot = state.copy
        d = state.directories[n]
        if any(has(p.reaches, n) for p in state.processes):
            return
        shown = self.on("births") if registration == state.decided.registered[n] else boot == state.boots
        loss = "copy" if shown else "power"
        old = Directory(log, NONE, registration=registration, page=d.page + 1, loss=loss, synced=len(log))
        state = state._replace(copies=state.copies - 1)
        members = [m for m in range(self.replicas) if m != n and has(state.decided.isr | state.decided.elr, m)]
        if members and not self.durable and not any(state.directories[m].epoch != NONE for m in members):
            state = self._left(state, state.directories[best(state, members)].log)     # the last complete member is destroyed
        yield f"!an operator restores the old copy of D{n}", put(state, n, old)

    def _left(self, state, log):
        """What may still be expected: acknowledged records in the most complete log that is left."""
        present = set(enumerate(record for _, record in log))
        return state._replace(acked=state.acked & present, seen=(), seen_before=state.seen_before or state.seen)

    def _power_losses(self, state):
        every = (1 << self.count) - 1
        for ends in product(*(range(d.synced, len(d.log) + 1) for d in state.directories)):
            fresh = tuple(Directory(d.log[:end], NONE, synced=end, registration=d.registration, page=d.page + 1,
                                    loss=d.loss or "power") for d, end in zip(state.directories, ends, strict=True))
            after = state._replace(directories=fresh, processes=(Process(every),) * self.processes,
                                   boots=state.boots + 1, cuts=state.cuts - 1)
            members = [n for n, d in enumerate(fresh) if has(state.decided.isr | state.decided.elr, n)
                       and d.loss == "power" and d.registration == state.decided.registered[n]]
            left = self._left(after, fresh[best(after, members)].log if members else ())
            yield f"!power loss, logs end at {list(ends)}", left._replace(acked=state.acked) if self.durable else left
