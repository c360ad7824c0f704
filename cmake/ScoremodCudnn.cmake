# The headers of the cuDNN backend: cudnn-frontend (header only), cuDNN and CUDA. The libraries themselves are loaded at run time, so one
# libscoremod.so serves machines with and without a GPU. Searched in a system CUDA and in the pip packages that ./dev installs into .venv;
# `pip install .` fetches them. Without them the backend is left out.

set(SCOREMOD_CUDNN AUTO CACHE STRING "Build the cuDNN backend: AUTO (when its headers are found), ON or OFF")
set_property(CACHE SCOREMOD_CUDNN PROPERTY STRINGS AUTO ON OFF)
set(SCOREMOD_HAS_CUDNN OFF)
if(SCOREMOD_CUDNN STREQUAL "OFF")
  message(STATUS "cuDNN backend: left out (SCOREMOD_CUDNN=OFF)")
  return()
endif()

file(GLOB scoremod_pip_packages "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages")
if(SKBUILD AND NOT scoremod_pip_packages)
  # `pip install .` of a plain source tree. These can't stand in pyproject.toml, whose packages bring their dependencies along: here
  # cuBLAS, which is hundreds of MB.
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(scoremod_pip_packages "${PROJECT_BINARY_DIR}/headers")
  message(STATUS "cuDNN backend: fetching its headers into ${scoremod_pip_packages}")
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --target
            "${scoremod_pip_packages}" -r "${PROJECT_SOURCE_DIR}/requirements-cudnn-headers.txt"
    RESULT_VARIABLE scoremod_fetch_status)
  if(scoremod_fetch_status)
    message(WARNING "cuDNN backend: its headers could not be fetched (pip's output is above)")
  endif()
endif()
set(scoremod_cuda_roots /usr/local/cuda)
foreach(root IN LISTS scoremod_pip_packages)
  list(APPEND scoremod_cuda_roots "${root}" "${root}/nvidia/cudnn" "${root}/nvidia/cudnn_jit" "${root}/nvidia/cu13")
endforeach()

find_path(SCOREMOD_CUDA_INCLUDE cuda_runtime_api.h HINTS ${scoremod_cuda_roots} PATH_SUFFIXES include)
find_path(SCOREMOD_CUDNN_INCLUDE cudnn.h HINTS ${scoremod_cuda_roots} PATH_SUFFIXES include)
find_path(SCOREMOD_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${scoremod_cuda_roots} PATH_SUFFIXES include)
mark_as_advanced(SCOREMOD_CUDA_INCLUDE SCOREMOD_CUDNN_INCLUDE SCOREMOD_CUDNN_FRONTEND_INCLUDE)

set(scoremod_cudnn_missing "")
foreach(part CUDA CUDNN CUDNN_FRONTEND)
  if(NOT SCOREMOD_${part}_INCLUDE)
    list(APPEND scoremod_cudnn_missing ${part})
  endif()
endforeach()
if(NOT scoremod_cudnn_missing)
  set(SCOREMOD_HAS_CUDNN ON)
  include(FrontendHeaders)
  message(STATUS "cuDNN backend: built with ${SCOREMOD_CUDNN_FRONTEND_INCLUDE} and ${SCOREMOD_CUDNN_INCLUDE}")
elseif(SCOREMOD_CUDNN STREQUAL "ON")
  message(FATAL_ERROR "cuDNN backend: headers of ${scoremod_cudnn_missing} not found; run './dev setup', or set SCOREMOD_CUDNN=OFF")
else()
  message(STATUS "cuDNN backend: left out, headers of ${scoremod_cudnn_missing} not found ('./dev setup' installs them)")
endif()
