"""Damaged and hostile files and directories."""
