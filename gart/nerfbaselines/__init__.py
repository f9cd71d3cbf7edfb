"""gart as a method of nerfbaselines (docs/nerfbaselines.md).

nerfbaselines imports `spec` at every start, so neither it nor this file imports anything heavy.
"""
