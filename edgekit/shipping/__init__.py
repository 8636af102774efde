"""From a bundle to a board.
What it installs there, as files with hashes, and the way to put them there.

plan         the engine, its version, names, and the service
resolve      a board's machine, Python and glibc; exact versions for it, by uv
wheelhouse   the wheels themselves, and Debian's packages for what has none
package      a folder that installs all of it on a board; deb: the same as a Debian package
answers      what a board may say, which is a stranger's data
push         the same over ssh, with a self-test and a timing there; a second time only what changed
"""
