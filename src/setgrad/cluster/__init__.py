"""Fits and picks on many machines by Ray, which starts the processes and replaces those that are lost."""

from setgrad.cluster._fit import fit as fit
from setgrad.cluster._picks import write_picks as write_picks
