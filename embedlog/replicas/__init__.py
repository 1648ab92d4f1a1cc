"""The directories of a set, and the replicas of its partitions.

A set is several log directories that are opened together. The package must not know producers,
consumers, groups or transactions.

- `replica_set`: the open set; `assignments`, `moves` and `set_topics` change its topics and replicas
- `rules`: what is decided from a state and an event, without files
- `decisions`: the decision log in all directories, and decisions by a majority of its copies
- `members`: which directories belong to the set, which of them answer, and what they are
- `partition`: the leader of a partition, its copies, and its face for clients
- `observation`: what descriptions and waits read of a set
- `verification`: comparison of replicas with their leaders, and their repair

Other units import `replica_set`, `members.adoption` (makes a set of a log), `members.membership`
(the file of members), `members.open_directories` (which of them answer), `members.set_directory`
(what a directory holds of a decided topic), `members.set_up` (begins new sets, and checks a
directory that is opened alone), `observation.answers`, `observation.decision_words`,
`observation.directory_view` and `observation.replica_events`.
"""
