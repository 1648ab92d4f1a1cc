"""Contains the tools of a release: wheels for every platform, checks of their contents, and trials
of an installed wheel.
"""
