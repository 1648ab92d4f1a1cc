"""Contains the descriptions and reports that public calls return; their rules are those of `types`.

Exports: `topics`, `groups` (with transactions), `replicas`, `directories` (of a set). Each is a
module of its own because few programs need more than one. `display`, a unit of its own below this
package, shows tables in notebooks and text on terminals.
"""
