# SPDX-License-Identifier: Apache-2.0
# The driver's declarations, held against CUDA's where a toolkit is.
find_program(RINGCAST_NVCC nvcc)
get_filename_component(nvcc "${RINGCAST_NVCC}" REALPATH)
get_filename_component(toolkit "${nvcc}" DIRECTORY)
find_path(RINGCAST_CUDA_INCLUDE cuda.h HINTS ENV CUDA_PATH ENV CUDA_HOME "${toolkit}/.." PATHS /usr/local/cuda
          PATH_SUFFIXES include targets/x86_64-linux/include)
mark_as_advanced(RINGCAST_CUDA_INCLUDE RINGCAST_NVCC)
if(RINGCAST_CUDA_INCLUDE)
  add_library(driver_check OBJECT ${PROJECT_SOURCE_DIR}/tests/gpu/driver_check.c)
  ringcast_own(driver_check)
  target_include_directories(driver_check SYSTEM PRIVATE ${RINGCAST_CUDA_INCLUDE})
endif()
