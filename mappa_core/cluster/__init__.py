"""A run's servers and ranks on several machines, which Ray places and watches."""
