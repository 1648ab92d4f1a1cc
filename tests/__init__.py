"""The suite. It mirrors the rooms: what `embedlog/NAME.py` does, `tests/test_NAME.py` attacks."""
