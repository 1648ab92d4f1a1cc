"""What the console shows, as plain values: observations, pages of records, filters, views, changes
and the check.
"""
