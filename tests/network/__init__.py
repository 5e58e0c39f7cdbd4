"""Hosts on one machine: network namespaces with links of a given rate."""
