# The headers of the cuDNN backend: cudnn-frontend (header only), cuDNN and CUDA. The libraries themselves are loaded at run time, so one
# libscoremod.so serves machines with and without a GPU. Searched in a system CUDA and in the pip packages that ./dev installs into .venv;
# without them the backend is left out.

set(SCOREMOD_CUDNN AUTO CACHE STRING "Build the cuDNN backend: AUTO (when its headers are found), ON or OFF")
set_property(CACHE SCOREMOD_CUDNN PROPERTY STRINGS AUTO ON OFF)
set(SCOREMOD_HAS_CUDNN OFF)
if(SCOREMOD_CUDNN STREQUAL "OFF")
  message(STATUS "cuDNN backend: left out (SCOREMOD_CUDNN=OFF)")
  return()
endif()

file(GLOB scoremod_pip_packages "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages")
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
  message(STATUS "cuDNN backend: built with ${SCOREMOD_CUDNN_FRONTEND_INCLUDE} and ${SCOREMOD_CUDNN_INCLUDE}")
elseif(SCOREMOD_CUDNN STREQUAL "ON")
  message(FATAL_ERROR "cuDNN backend: headers of ${scoremod_cudnn_missing} not found; run './dev setup', or set SCOREMOD_CUDNN=OFF")
else()
  message(STATUS "cuDNN backend: left out, headers of ${scoremod_cudnn_missing} not found ('./dev setup' installs them)")
endif()
