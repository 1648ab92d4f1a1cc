"""Groups under crashes, frozen members and deleted topics."""
