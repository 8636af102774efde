"""The build journey.
One trained model in, for each board a checked bundle or the reasons why there is none.
"""
