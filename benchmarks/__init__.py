"""Measurements that the choices of the library rest on; each is a module to run."""
