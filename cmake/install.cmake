# make install: libraries, headers, command, pkg-config and CMake package files.
#
# The export sets are two, so that a user of the shared libraries needs none of what the static ones are
# built on.
include(CMakePackageConfigHelpers)
set(RS_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/reshard)

install(DIRECTORY include/reshard DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS reshard_shared EXPORT reshard-shared DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS reshard EXPORT reshard-static DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET reshard_mpi)
    install(TARGETS reshard_mpi_shared EXPORT reshard-mpi-shared DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(TARGETS reshard_mpi EXPORT reshard-mpi-static DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET reshard_cli)
    install(TARGETS reshard_cli DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
foreach(set shared static mpi-shared mpi-static)
    if(set MATCHES "mpi" AND NOT TARGET reshard_mpi)
        continue()
    endif()
    install(EXPORT reshard-${set} NAMESPACE reshard:: DESTINATION ${RS_CMAKE_DIR})
endforeach()

configure_package_config_file(cmake/reshard-config.cmake.in
    ${CMAKE_BINARY_DIR}/package/reshard-config.cmake INSTALL_DESTINATION ${RS_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/reshard-config-version.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/reshard-config.cmake
    ${CMAKE_BINARY_DIR}/package/reshard-config-version.cmake DESTINATION ${RS_CMAKE_DIR})

# The .pc files find their prefix from where they lie, so that a tree can be moved or staged.
file(RELATIVE_PATH RS_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
foreach(name reshard reshard_mpi)
    if(TARGET ${name})
        configure_file(cmake/${name}.pc.in ${CMAKE_BINARY_DIR}/package/${name}.pc @ONLY)
        install(FILES ${CMAKE_BINARY_DIR}/package/${name}.pc
            DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
    endif()
endforeach()
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
