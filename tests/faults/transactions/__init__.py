"""Transactions under crashes, frozen owners and power losses."""
