"""A board before it is at hand: will a bundle load and agree there, and how fast?"""
