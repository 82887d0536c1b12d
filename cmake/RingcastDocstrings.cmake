# SPDX-License-Identifier: Apache-2.0
# ringcast_docstrings(target): the header of the extension's docstrings, made of the stub, which is their only source.
function(ringcast_docstrings target)
  set(python ${PROJECT_SOURCE_DIR}/python)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/generated)
  file(MAKE_DIRECTORY ${folder}/python)
  add_custom_command(OUTPUT ${folder}/python/docstrings.h
    COMMAND ${Python_EXECUTABLE} ${python}/extension/docstrings.py ${python}/ringcast/_ringcast.pyi
            ${folder}/python/docstrings.h
    DEPENDS ${python}/extension/docstrings.py ${python}/ringcast/_ringcast.pyi VERBATIM)
  target_sources(${target} PRIVATE ${folder}/python/docstrings.h)
  target_include_directories(${target} PRIVATE ${folder})
endfunction()
