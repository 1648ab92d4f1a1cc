"""The test suite. It mirrors the packages: the tests of `embedlog/PACKAGE/NAME.py` are in
`tests/PACKAGE/test_NAME.py`.
"""
