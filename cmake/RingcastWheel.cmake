# SPDX-License-Identifier: Apache-2.0
# The layout of the Python package, which brings the command and the C library too. pyproject.toml comes here by way of
# scikit-build-core.
#   ringcast/         the package, with the extension
#   ringcast/_c/      headers, libraries, and their CMake and pkg-config files: `python -m ringcast config`
#   scripts, data     the command, its man pages and its completions, which pip puts into the environment
set(CMAKE_INSTALL_INCLUDEDIR ringcast/_c/include)
set(CMAKE_INSTALL_LIBDIR ringcast/_c/lib)
set(CMAKE_INSTALL_BINDIR ${SKBUILD_SCRIPTS_DIR})
set(CMAKE_INSTALL_DATADIR ${SKBUILD_DATA_DIR}/share)
set(CMAKE_INSTALL_MANDIR ${SKBUILD_DATA_DIR}/share/man)

# A wheel has no symbolic links. The library's file therefore has the name of the soname, and the name that the linker
# looks for is a linker script.
set(RINGCAST_FILE_VERSION ${RINGCAST_SOVERSION})
cmake_language(DEFER CALL install CODE "
  set(script \${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/libringcast.so)
  file(REMOVE \${script})
  file(WRITE \${script} \"INPUT(libringcast.so.${RINGCAST_SOVERSION})\\n\")")
