"""The maths: pure functions and small immutable values on arrays of any array-API library."""
