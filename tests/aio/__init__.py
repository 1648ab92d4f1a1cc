"""Tests of the clients for asyncio."""
