<<<<<<< HEAD
"""Tests of serializers with schemas, and of the registry."""
=======
"""Tests of serializers with schemas and of their registry."""
>>>>>>> main
