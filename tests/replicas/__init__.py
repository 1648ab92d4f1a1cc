"""Tests of the directories of a set: members, the decision log, registration."""
